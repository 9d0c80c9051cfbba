"""Which names are of credentials: `hf_token`, `apiKey`; not `max_tokens`, `eos_token`."""

import re

_NAMES = {
    *("password", "passwd", "passphrase", "pwd", "secret", "secrets", "credential", "credentials"),
    *("authorization", "authorisation", "auth", "bearer", "apikey", "cookie", "cookies"),
    *("header", "headers", "authentication", "oauth", "jwt", "cred", "creds"),
    *("passwords", "passphrases", "apikeys", "secretkey", "accesskey", "privatekey"),
    *("hftoken", "authtoken", "accesstoken", "apitoken", "bearertoken", "passcode", "passkey"),
}
_SHORT = {"pass", "pat"}
"""Names of credentials with another word before them: `DB_PASS`, `GITHUB_PAT`."""
_NO_PASSWORD = {
    "single",
    "forward",
    "backward",
    "first",
    "second",
    "last",
    "one",
    "two",
    "per",
    "max",
}
"""Words before `pass` that make it another thing."""
_KEYS = {
    *("api", "access", "private", "secret", "subscription", "account", "auth", "encryption"),
    *("client", "signing", "ssh", "license", "licence", "master", "deploy", "storage", "service"),
    *("openai", "anthropic", "hf", "huggingface", "azure", "google", "gemini", "mistral", "cohere"),
    *("groq", "wandb"),
}
_TOKENS = {"api", "auth", "access", "bearer", "refresh", "secret", "hf"}
"""Several tokens are of a text, but for these."""
_WHICH = {
    *("value", "prod", "production", "dev", "staging", "primary", "secondary", "main", "backup"),
    *("ro", "rw", "b64", "base"),
}
"""Says which of several credentials it is, as a number does."""
# Tokens of a text, not of a user: `eos_token`, `think_end_token`, `max_new_token`.
_OF_TEXT = {
    *("bos", "eos", "pad", "unk", "sep", "cls", "mask", "eot", "eod", "eom", "boi", "eoi", "fim"),
    *(
        "start",
        "end",
        "begin",
        "stop",
        "prefix",
        "suffix",
        "middle",
        "first",
        "last",
        "next",
        "new",
    ),
    *("think", "thinking", "reasoning", "image", "audio", "video", "vision", "special", "added"),
    *("max", "min", "per", "of", "add", "skip", "system", "assistant", "role", "turn", "answer"),
    *("decoder", "forced", "separator", "delimiter", "vocab", "blank", "space", "newline", "tool"),
}
_WORD = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")


def is_credential(name: str) -> bool:
    """Whether a name is a credential's: `hf_token`, `apiKey`; not `max_tokens`, `eos_token`."""
    words = [word.lower() for word in _WORD.findall(name)]
    while len(words) > 1 and (words[-1].isdecimal() or words[-1] in _WHICH):
        words.pop()
    if not words or name == "PWD":  # a shell's variable of the folder that it is in
        return False
    if words[-1] in _SHORT:
        return len(words) > 1 and words[-2] not in _NO_PASSWORD
    if words[-1] == "token":
        return not _OF_TEXT & set(words)
    if words[-1] in ("key", "keys", "tokens"):
        known = _TOKENS if words[-1] == "tokens" else _KEYS
        return len(words) > 1 and words[-2] in known
    return words[-1] in _NAMES or words[-1].endswith(("password", "passwd"))
