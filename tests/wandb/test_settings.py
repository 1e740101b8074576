"""Laws of the settings of tracking: what is refused, and when a publish goes online."""

import dataclasses
from pathlib import Path

import pytest
import yaml

import scaling
from scaling.core.case import Refusal
from scaling.wandb import settings
from scaling.wandb.settings import TrackingSettings
from tests.support import wandb_study
from tests.support.wandb_server import KEY

ROOT = Path(scaling.__file__).parents[1]


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    wandb_study.clear_environment(monkeypatch, tmp_path)


@pytest.mark.parametrize("mode", ["onlin", None, "disabled"])
def test_an_unknown_mode_is_refused_with_those_there_are(mode):
    with pytest.raises(Refusal, match="auto, online, offline"):
        TrackingSettings.from_config({"name": "wandb", "mode": mode})


BAD = [
    {"projekt": "x"},
    {"project": "a/b"},
    {"project": None},
    {"entity": ""},
    {"timeout": 0},
    {"timeout": "20"},
    {"every": -1},
    {"every": True},
    {"dashboard": "yes"},
    {"tags": "one"},
]


@pytest.mark.parametrize("config", BAD)
def test_a_bad_setting_is_refused_by_its_name(config):
    with pytest.raises(Refusal, match=next(iter(config))):
        TrackingSettings.from_config(config)


def test_a_key_in_a_config_is_refused_without_repeating_it():
    with pytest.raises(Refusal, match="WANDB_API_KEY") as refusal:
        TrackingSettings.from_config({"api_key": KEY})
    assert KEY not in str(refusal.value)


def test_the_config_file_states_the_defaults():
    config = yaml.safe_load((ROOT / "conf" / "tracking" / "wandb.yaml").read_text())
    assert TrackingSettings.from_config(config) == TrackingSettings()
    assert set(config) == {"name"} | {field.name for field in dataclasses.fields(TrackingSettings)}
    assert yaml.safe_load((ROOT / "conf" / "tracking" / "none.yaml").read_text()) == {"name": "none"}


def test_auto_goes_online_only_with_a_key_for_the_server_in_question(tmp_path, monkeypatch):
    def mode() -> str:
        return settings.select_mode(TrackingSettings())[0]

    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example.org/")
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert mode() == "offline"
    (tmp_path / "netrc").write_text(f"machine api.wandb.ai login user password {KEY}\n")
    assert mode() == "offline"
    (tmp_path / "netrc").write_text(f"machine wandb.example.org login user password {KEY}\n")
    assert mode() == "online"
    (tmp_path / "netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    assert mode() == "online"
    monkeypatch.setenv("WANDB_MODE", "offline")
    assert mode() == "offline" and settings.select_mode(TrackingSettings(mode="online"))[0] == "offline"


def test_a_password_in_the_address_of_the_server_is_never_written(monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", "https://user:hunter22@wandb.example.org")
    assert settings.destination(TrackingSettings(), "online")["base_url"] == "https://wandb.example.org"
