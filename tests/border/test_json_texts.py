"""JSON of others: one sentence says what is wrong, soon."""

import time

import pytest

from resonance_vllm.errors import SettingError
from resonance_vllm.files import parse_json


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "x.json: not JSON (the key 'a' is written twice)"),
        ('{"a": ' + "9" * 5000 + "}", "x.json: not JSON (a number of more than 4300 digits)"),
        ("[" * 100_000, "x.json: not JSON (nested too deep)"),
        (b"\xff{}", "x.json: not JSON ('utf-8' codec can't decode byte 0xff in position 0: "
         "invalid start byte)"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_one_sentence(text, message):
    with pytest.raises(SettingError) as wrong:
        parse_json(text, "x.json")
    assert str(wrong.value) == message


def test_the_key_that_is_written_twice_is_found_soon():
    text = "{" + ", ".join(f'"{n}": 0' for n in range(60_000)) + ', "59999": 1}'
    began = time.process_time()
    with pytest.raises(SettingError, match="the key '59999' is written twice"):
        parse_json(text, "x.json")
    assert time.process_time() - began < 3
