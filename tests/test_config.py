"""Settings: precedence, origins, and errors that name the place at fault."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from kernelwright.config import NAMES, Measurement, Settings, api_key, debug_enabled, keys_present, parse_bytes
from kernelwright.errors import UsageError


def load(tmp_path: Path, **arguments) -> Settings:
    return Settings.load(cwd=tmp_path, **({"env": {"HOME": str(tmp_path)}} | arguments))


def write_toml(tmp_path: Path, text: str, name: str = "kernelwright.toml") -> Path:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_defaults_follow_the_home_and_xdg_folders(tmp_path):
    settings = load(tmp_path)
    assert settings.store == tmp_path / ".local/share/kernelwright/store.db"
    assert settings.cache_dir == tmp_path / ".cache/kernelwright"
    xdg = {"HOME": "/nowhere", "XDG_DATA_HOME": "/data", "XDG_CACHE_HOME": "relative/is/ignored"}
    settings = load(tmp_path, env=xdg)
    assert settings.store == Path("/data/kernelwright/store.db")
    assert settings.cache_dir == Path("/nowhere/.cache/kernelwright")
    assert settings.describe()["store"].origin == "default"


def test_constructor_alone_gives_valid_defaults():
    settings = Settings()
    assert settings.sandbox == "auto"
    assert settings.baselines == ("eager", "compile")
    assert settings.measurement.looks == (12, 24, 48, 96)
    assert settings.max_minutes is None
    assert settings.origin("rounds") == "default"
    assert Settings(rounds=3).origin("rounds") == "flag"
    assert Settings(recipe_samples=3).origin("recipe.samples") == "flag"
    assert Settings(recipe_samples=3).origin("recipe.history") == "default"


def test_each_source_beats_the_one_below_it(tmp_path):
    path = write_toml(tmp_path, "rounds = 2\nthreads = 2\njudge = 'file'\ncoder = 'file'\n")
    env = {"KERNELWRIGHT_THREADS": "3", "KERNELWRIGHT_JUDGE": "env", "KERNELWRIGHT_CODER": "env"}
    flags = {"judge": "flag", "coder": "flag", "sandbox": None, "baselines": ()}
    settings = load(tmp_path, env=env, flags=flags, overrides=["coder=set"])
    described = settings.describe()
    assert described["rounds"] == (2, f"file {path}")
    assert described["threads"] == (3, "env KERNELWRIGHT_THREADS")
    assert described["judge"] == ("flag", "flag")
    assert described["coder"] == ("set", "flag --set")
    assert described["sandbox"] == ("auto", "default")
    assert described["baselines"] == (["eager", "compile"], "default")
    assert list(described) == list(NAMES)


def test_an_explicit_file_replaces_the_one_in_the_working_directory(tmp_path):
    write_toml(tmp_path, "threads = 2\n")
    other = write_toml(tmp_path, "rounds = 9\n", "sub/other.toml")
    settings = load(tmp_path, config_file=other)
    assert (settings.threads, settings.rounds) == (1, 9)


def test_the_last_override_of_a_name_wins(tmp_path):
    settings = load(tmp_path, overrides=["threads=2", "threads=5", "max-minutes=1.5"])
    assert (settings.threads, settings.max_minutes) == (5, 1.5)


def test_relative_paths_belong_to_where_they_were_written(tmp_path):
    path = write_toml(tmp_path, "store = 'here.db'\nsuite_dirs = ['a', '/b', '~/c']\n", "sub/conf.toml")
    settings = load(tmp_path, config_file=path, env={"HOME": "/h", "KERNELWRIGHT_CACHE_DIR": "cache"})
    assert settings.store == tmp_path / "sub/here.db"
    assert settings.suite_dirs == (tmp_path / "sub/a", Path("/b"), Path("/h/c"))
    assert settings.cache_dir == tmp_path / "cache"


def test_text_from_variables_is_parsed(tmp_path):
    env = {
        "KERNELWRIGHT_MODELS": "openai:a, openai:b",
        "KERNELWRIGHT_MEASUREMENT": "quick",
        "KERNELWRIGHT_RECIPE_SAMPLES": "3",
        "KERNELWRIGHT_JUDGE_PARAMETERS": "temperature=0.5,effort=high",
        "KERNELWRIGHT_CODER_PARAMETERS": "{temperature = 0.5, effort = 'high'}",
        "KERNELWRIGHT_TESTER_PARAMETERS": '{"temperature": 0.5, "effort": "high"}',
        "KERNELWRIGHT_MEMORY_BYTES": "2GiB",
        "KERNELWRIGHT_BASELINES": "eager",
        "KERNELWRIGHT_MAX_MINUTES": "none",
        "KERNELWRIGHT_THREADS": "",
    }
    settings = load(tmp_path, env=env)
    assert settings.models == ("openai:a", "openai:b")
    assert (settings.measurement.name, settings.measurement.looks) == ("quick", (12,))
    assert settings.recipe.samples == 3
    for role in (settings.coder, settings.judge, settings.tester):
        assert role.parameters == {"temperature": 0.5, "effort": "high"}
    assert settings.memory_bytes == 2**31
    assert settings.baselines == ("eager",)
    assert settings.max_minutes is None
    assert settings.describe()["threads"] == (1, "default")


@pytest.mark.parametrize(
    ("text", "size"),
    [("4GiB", 2**32), ("4G", 2**32), ("4GB", 4 * 10**9), ("1.5 KiB", 1536), ("512", 512), ("7b", 7), (9, 9)],
)
def test_sizes(text, size):
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "4Q", "-4GiB", "iB", "4 5", "GiB", True])
def test_no_sizes(text):
    with pytest.raises(ValueError, match="no size"):
        parse_bytes(text)


def test_unknown_toml_key_names_file_key_and_near_names(tmp_path):
    path = write_toml(tmp_path, "treads = 2\n")
    with pytest.raises(UsageError) as caught:
        load(tmp_path)
    assert caught.value.data["key"] == "treads"
    assert "threads" in caught.value.data["near"]
    assert str(path) in str(caught.value)
    assert "did you mean threads" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("threads", "x"),
        ("threads", "0"),
        ("sandbox", "bwarp"),
        ("recipe.samples", "0"),
        ("measurement", "fast"),
        ("openai.tries", "0"),
        ("coder.parameters", "temperature"),
        ("coder.parameters", "{temperature 0.7}"),
        ("coder.parameters", "0.7=temperature"),
        ("baselines", "eager,eager"),
        ("max_minutes", "-1"),
        ("memory_bytes", "4Q"),
        ("store", ""),
        ("coder", ""),
    ],
)
def test_bad_values_name_the_setting_and_its_source(tmp_path, name, value):
    with pytest.raises(UsageError) as caught:
        load(tmp_path, overrides=[f"{name}={value}"])
    assert caught.value.data["key"] == name
    assert caught.value.data["origin"] == "flag --set"
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    "text", ["threads = true", "max_minutes = true", "store = 3", "[threads]\nx = 1", "recipe = 3"]
)
def test_bad_types_in_a_file_name_the_file(tmp_path, text):
    path = write_toml(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        load(tmp_path)
    assert caught.value.data["origin"] == f"file {path}"


def test_a_misspelt_choice_suggests_the_right_one(tmp_path):
    with pytest.raises(UsageError, match="did you mean bwrap"):
        load(tmp_path, flags={"sandbox": "bwarp"})


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("coder = 'openai:gpt-5'", {"coder": "openai:gpt-5", "coder.parameters": {}}),
        (
            "[coder]\nmodel = 'openai:gpt-5'\nparameters = { seed = 3 }",
            {"coder": "openai:gpt-5", "coder.parameters": {"seed": 3}},
        ),
        ("[coder.parameters]\nseed = 3", {"coder": "offline", "coder.parameters": {"seed": 3}}),
        ("[recipe]\nname = 'kevin'\nsamples = 4", {"recipe": "kevin", "recipe.samples": 4, "recipe.history": 16}),
        ("recipe = 'kevin'", {"recipe": "kevin", "recipe.samples": 1}),
        (
            "[openai]\ntries = 2\n[anthropic]\ntimeout_s = 5",
            {"openai.tries": 2, "anthropic.tries": 6, "anthropic.timeout_s": 5},
        ),
    ],
)
def test_a_table_in_a_file_or_its_main_value(tmp_path, text, found):
    described = load(tmp_path, config_file=write_toml(tmp_path, text)).describe()
    assert {name: described[name].value for name in found} == found


def test_a_table_gives_its_own_names_only(tmp_path):
    path = write_toml(tmp_path, "[recipe]\nsampels = 4\n")
    with pytest.raises(UsageError, match=r"unknown setting 'recipe.sampels'.*did you mean recipe.samples") as caught:
        load(tmp_path)
    assert caught.value.data["origin"] == f"file {path}"


@pytest.mark.parametrize("name", ["samples", "search_seed", "llm_tries", "coder_parameter"])
def test_a_name_of_an_earlier_version_is_told_what_it_is_called_now(tmp_path, name):
    now = {"samples": "recipe.samples", "search_seed": "recipe.search_seed", "llm_tries": "openai.tries"}
    with pytest.raises(UsageError, match=f"unknown setting '{name}'") as caught:
        load(tmp_path, overrides=[f"{name}=1"])
    assert now.get(name, "coder.parameters").partition(".")[2] in caught.value.hint


@pytest.mark.parametrize(
    ("name", "now"), [("SAMPLES", "recipe.samples"), ("LLM_TRIES", "openai.tries"), ("LOOKS", "measurement")]
)
def test_a_variable_of_an_earlier_version_is_not_passed_over(tmp_path, name, now):
    with pytest.raises(UsageError, match=f"env KERNELWRIGHT_{name}") as caught:
        load(tmp_path, env={"HOME": "/h", f"KERNELWRIGHT_{name}": "1"})
    assert now in caught.value.hint


@pytest.mark.parametrize("name", Measurement.model_fields)
def test_a_constant_of_the_method_is_no_flag(tmp_path, name):
    with pytest.raises(UsageError, match=f"{name} is part of the method: set measurement=quick"):
        load(tmp_path, overrides=[f"{name}=1"])


def test_a_file_may_give_single_constants_of_the_method(tmp_path):
    method = load(
        tmp_path, config_file=write_toml(tmp_path, "[measurement]\nlooks = [4]\npool_bytes = '16MiB'\n")
    ).measurement
    assert method == Measurement(looks=(4,), pool_bytes=16 << 20)
    assert method.name == "custom"


@pytest.mark.parametrize(
    "changed",
    [
        {"looks": (3, 2)},
        {"looks": ()},
        {"looks": "a"},
        {"confirm_max_pairs": 3},
        {"confirm_pairs": 8, "confirm_max_pairs": 5},
        {"noise_bound": 1.5},
        {"search_noise_bound": 0},
        {"race_noise_bound": 1},
        {"race_pairs": 0},
        {"target_half_width": 0},
        {"window_ms": float("inf")},
        {"pool_bytes": "many"},
        {"check_trials": 0},
        {"look": (3,)},
    ],
    ids=str,
)
def test_a_method_that_cannot_be_followed_is_refused(tmp_path, changed):
    with pytest.raises(ValueError, match="validation error"):
        Measurement(**changed)
    with pytest.raises(UsageError, match=r"bad value .* for setting 'measurement'"):
        load(tmp_path, flags={"measurement": changed})


def test_a_record_of_an_earlier_version_is_read(tmp_path):
    recorded = {
        "store": "/elsewhere.db",
        "looks": [4, 8],
        "check_trials": 3,
        "samples": 2,
        "coder": "openai:gpt-5",
        "coder_parameters": {"seed": 3},
        "llm_tries": 2,
        "recipe": "kevin",
        "baselines": ["eager"],
        "of_an_older_version": 1,
    }
    settings = load(tmp_path).as_recorded("run kevin", recorded)
    assert settings.measurement == Measurement(looks=(4, 8), check_trials=3)
    assert (settings.recipe.name, settings.recipe.samples, settings.recipe.history) == ("kevin", 2, 16)
    assert (settings.coder.model, settings.coder.parameters) == ("openai:gpt-5", {"seed": 3})
    assert (settings.openai.tries, settings.anthropic.tries, settings.openai.concurrency) == (2, 2, 8)
    assert (settings.baselines, settings.store) == (("eager",), load(tmp_path).store)
    assert settings.origin("recipe.samples") == "run kevin"


def test_a_record_of_today_is_read(tmp_path):
    flags = {"recipe.samples": 3, "coder": "openai:x", "measurement": Measurement(looks=(4,)), "openai.tries": 1}
    made = load(tmp_path, flags=flags)
    assert load(tmp_path).as_recorded("run", made.model_dump(mode="json")).model_dump() == made.model_dump()
    assert NAMES.recorded(made.model_dump(mode="json"))["measurement.looks"] == [4]


@pytest.mark.parametrize("override", ["threads", "=3", "treads=3"])
def test_malformed_overrides(tmp_path, override):
    with pytest.raises(UsageError, match=r"NAME=VALUE|unknown setting"):
        load(tmp_path, overrides=[override])


def test_unknown_flag(tmp_path):
    with pytest.raises(UsageError, match="unknown setting 'roundz'"):
        load(tmp_path, flags={"roundz": 3})


def test_unusable_files(tmp_path):
    with pytest.raises(UsageError, match="cannot read"):
        load(tmp_path, config_file=tmp_path / "absent.toml")
    with pytest.raises(UsageError, match="no valid TOML"):
        load(tmp_path, config_file=write_toml(tmp_path, "threads = ", "broken.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="no valid TOML"):
        load(tmp_path, config_file=tmp_path / "binary.toml")


def test_settings_are_frozen_and_survive_pickling_with_origins(tmp_path):
    settings = load(tmp_path, flags={"threads": 2})
    with pytest.raises(ValueError, match="frozen"):
        settings.threads = 3
    again = pickle.loads(pickle.dumps(settings))
    assert again == settings
    assert again.origin("threads") == "flag"


def test_what_was_described_loads_again(tmp_path):
    settings = load(
        tmp_path, flags={"threads": 2, "max_minutes": 3, "suite_dirs": ("x",), "measurement": Measurement(looks=(4,))}
    )
    values = {name: item.value for name, item in settings.describe().items()}
    assert load(tmp_path, flags=values).model_dump() == settings.model_dump()


def test_with_values_validates_and_keeps_other_origins(tmp_path):
    settings = load(tmp_path, env={"HOME": "/h", "KERNELWRIGHT_ROUNDS": "2"})
    changed = settings.with_values(threads=4)
    assert changed.describe()["threads"] == (4, "flag")
    assert changed.describe()["rounds"] == (2, "env KERNELWRIGHT_ROUNDS")
    assert settings.threads == 1
    with pytest.raises(UsageError):
        settings.with_values(threads=0)
    with pytest.raises(UsageError):
        settings.with_values(thread=1)


def test_keys_are_reported_as_booleans_only():
    present = keys_present({"OPENAI_API_KEY": "sk-secret", "ANTHROPIC_API_KEY": ""})
    assert present == {"OPENAI_API_KEY": True, "ANTHROPIC_API_KEY": False}
    assert "secret" not in repr(present)


def test_a_key_is_read_by_name_and_never_quoted():
    env = {"OPENAI_API_KEY": " sk-secret\n", "ANTHROPIC_API_KEY": ""}
    assert api_key("OPENAI_API_KEY", env) == "sk-secret"
    assert api_key("ANTHROPIC_API_KEY", env) is None
    with pytest.raises(ValueError, match="HOME"):
        api_key("HOME", {"HOME": "/h"})
    for bad in ("sk-secret key", "sk-secret\nsk-other", "sk-sécret"):
        with pytest.raises(UsageError, match="OPENAI_API_KEY") as caught:
            api_key("OPENAI_API_KEY", {"OPENAI_API_KEY": bad})
        assert "cret" not in repr((str(caught.value), caught.value.data))


def test_base_urls_are_read_from_the_variables_of_the_vendors_programs(tmp_path):
    env = {"HOME": "/h", "OPENAI_BASE_URL": "http://localhost:8000/v1/", "ANTHROPIC_BASE_URL": "http://a"}
    settings = load(tmp_path, env=env)
    assert settings.describe()["openai.base_url"] == ("http://localhost:8000/v1", "env OPENAI_BASE_URL")
    assert settings.anthropic.base_url == "http://a"
    settings = load(tmp_path, env=env | {"KERNELWRIGHT_OPENAI_BASE_URL": "https://b/v1"})
    assert settings.describe()["openai.base_url"] == ("https://b/v1", "env KERNELWRIGHT_OPENAI_BASE_URL")


@pytest.mark.parametrize(
    "address", ["localhost:8000", "ftp://host/v1", "https://", "http://[::1/v1", "https://h/v1?key=sk-1", 7]
)
def test_what_is_no_base_url_is_refused(address, tmp_path):
    with pytest.raises(UsageError, match=r"openai\.base_url"):
        load(tmp_path, flags={"openai_base_url": address})


def test_a_password_in_a_base_url_is_refused_and_not_shown(tmp_path):
    with pytest.raises(UsageError, match=r"openai\.base_url") as caught:
        load(tmp_path, env={"OPENAI_BASE_URL": "https://me:sk-secret@host/v1"})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("value", "wanted"), [("1", True), ("yes", True), ("0", False), ("", False)])
def test_debug_variable(value, wanted):
    assert debug_enabled({"KERNELWRIGHT_DEBUG": value}) is wanted


def test_every_setting_says_what_it_is():
    assert all(NAMES[name].description for name in NAMES)


@pytest.mark.parametrize("name", ["openai_base_url", "anthropic_base_url"])
def test_keys_are_not_sent_where_a_file_in_the_working_folder_says(tmp_path, name):
    path = tmp_path / "kernelwright.toml"
    path.write_text(f'{name} = "http://localhost:9/v1"\n')
    with pytest.raises(UsageError, match="keys are sent there") as caught:
        Settings.load(env={}, cwd=tmp_path)
    assert f"KERNELWRIGHT_{name.upper()}" in caught.value.hint
    assert Settings.load(env={}, cwd=tmp_path, config_file=path).value(name) == "http://localhost:9/v1"
