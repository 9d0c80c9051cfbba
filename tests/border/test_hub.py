"""A model's name: a folder that is missing, and a hub that cannot be reached."""

import pytest
from huggingface_hub import constants

from resonance_vllm.config import asking_hub, refuse_missing_folder
from resonance_vllm.errors import SettingError


@pytest.mark.parametrize("name", ["./m", "/no/m", "~/no-such-folder", "a/b/c"])
def test_what_can_only_be_a_folder_is_refused_where_there_is_none(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingError, match=f"^model: there is no folder '{name}'"):
        refuse_missing_folder(name, "model")


def test_names_of_the_hub_pass():
    for name in ("smollm2", "org/name", ".."):
        assert refuse_missing_folder(name, "model") is None


def test_without_a_connection_the_cache_alone_is_asked(monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with asking_hub("no-such-model", "model"):
        assert constants.HF_HUB_OFFLINE
    assert not constants.HF_HUB_OFFLINE
