"""Tests of the tracking settings: invalid values are rejected, and the config file states the defaults."""

import dataclasses
import errno
import math

import pytest
import yaml

from scaling.core.case import Refusal
from scaling.wandb.job import TrackingSettings, describe_wandb_error
from tests.support import wandb_study
from tests.support.paths import CONF
from tests.support.wandb_server import KEY

INVALID_CONFIGS = [
    {"projekt": "x"}, {"project": "a/b"}, {"project": None}, {"entity": ""}, {"timeout": 0}, {"timeout": "20"},
    {"every": -1}, {"every": True}, {"dashboard": "yes"}, {"tags": "one"}, {"mode": "onlin"}, {"mode": None}, {"project": ""},
    {"project": 3}, {"entity": ["a"]}, {"timeout": math.nan}, {"tags": [1]}, {"tags": 3}, {"mode": "on"},
]  # fmt: skip


@pytest.fixture(autouse=True)
def environment(monkeypatch, tmp_path):
    wandb_study.clear_environment(monkeypatch, tmp_path)


@pytest.mark.parametrize("config", INVALID_CONFIGS)
def test_invalid_setting_is_rejected_by_name(config):
    with pytest.raises(Refusal, match=next(iter(config))):
        TrackingSettings.from_config(config)


def test_wandb_mode_replaces_auto_but_no_explicit_mode_and_must_be_known(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    modes = [
        TrackingSettings.from_config(config).mode for config in ({}, {"mode": "auto"}, {"mode": "online"})
    ]
    assert modes == ["offline", "offline", "online"]
    monkeypatch.setenv("WANDB_MODE", "offlin")
    with pytest.raises(Refusal, match="online, offline, disabled"):
        TrackingSettings.from_config({})


def test_api_key_in_a_config_is_rejected_without_printing_it():
    with pytest.raises(Refusal, match="WANDB_API_KEY") as refusal:
        TrackingSettings.from_config({"api_key": KEY})
    assert KEY not in str(refusal.value)


def test_config_file_states_the_defaults():
    config = yaml.safe_load((CONF / "tracking" / "wandb.yaml").read_text())
    assert TrackingSettings.from_config(config) == TrackingSettings()
    assert set(config) == {"name"} | {field.name for field in dataclasses.fields(TrackingSettings)}
    assert yaml.safe_load((CONF / "tracking" / "none.yaml").read_text()) == {"name": "none"}


def test_a_full_disk_is_described_with_the_fix_and_without_file_names():
    error = OSError(errno.ENOSPC, "No space left on device", "run-0.wandb")
    assert describe_wandb_error(error) == "No space left on device: free some space"
