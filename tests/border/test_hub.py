"""A model's name that can only be that of a folder."""

import pytest

from resonance_vllm.errors import SettingError
from resonance_vllm.hub import refuse_missing_folder


@pytest.mark.parametrize("name", ["./m", "/no/m", "~/no-such-folder", "a/b/c"])
def test_what_can_only_be_a_folder_is_refused_where_there_is_none(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match=f"^model: there is no folder '{name}'"):
        refuse_missing_folder(name, "model")


def test_names_of_the_hub_pass():
    for name in ("smollm2", "org/name", ".."):
        assert refuse_missing_folder(name, "model") is None
