"""Whatever is thrown at a configuration, it takes it or says ConfigError."""

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from algorithms.config.files import to_yaml
from algorithms.config.loading import load
from algorithms.config.schema import default_of
from algorithms.config.sections import RunSettings
from algorithms.grpo.config import ConfigError
from algorithms.r3_grpo.config import R3GRPOConfig

SECTIONS = list(R3GRPOConfig.class_sections())
KEYS = [(section, key) for section, model in R3GRPOConfig.class_sections().items() for key in model.model_fields]
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner), max_leaves=5
)
QUICK = settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@QUICK
@given(name=st.sampled_from(KEYS), value=VALUES)
def test_any_value_of_any_setting_is_taken_or_refused(name, value):
    config = R3GRPOConfig()
    before = config.to_sections()
    try:
        config.apply({name[0]: {name[1]: value}})
    except ConfigError as error:
        assert str(error).startswith((f"{name[0]}.{name[1]}: ", f"{name[0]}.{name[1]}."))  # of a section within it
        assert config.to_sections() == before
    else:
        assert R3GRPOConfig().apply(config.to_sections()).to_sections() == config.to_sections()


@QUICK
@given(sections=st.dictionaries(st.sampled_from(SECTIONS) | st.text() | st.integers(), VALUES, max_size=2))
def test_any_sections_are_taken_or_refused(sections):
    with contextlib.suppress(ConfigError):
        R3GRPOConfig().apply(sections)


@QUICK
@given(name=st.sampled_from([f"{section}.{key}" for section, key in KEYS]) | st.text(), value=st.text())
def test_any_override_is_taken_or_refused(name, value):
    with contextlib.suppress(ConfigError):
        load(None, [f"{name}={value}"], R3GRPOConfig)


@QUICK
@given(content=st.binary() | st.text().map(lambda text: text.encode("utf-8", "replace")))
def test_any_file_is_taken_or_refused(tmp_path, content):
    path = tmp_path / "any.yaml"
    path.write_bytes(content)
    try:
        load(path, [], R3GRPOConfig)
    except ConfigError as error:
        assert str(error).startswith(str(path))


@settings(QUICK, max_examples=50)
@given(text=st.text(min_size=1))
def test_any_text_survives_the_resolved_file(tmp_path, text):
    config, run = R3GRPOConfig(), RunSettings(name="mine")
    config.environment(instruction=text, env_config={"extra": {text: [text]}})
    path = tmp_path / "config.yaml"
    try:
        path.write_text(to_yaml(config, run, algorithm="r3_grpo"), encoding="utf-8")
    except UnicodeEncodeError:
        pytest.fail("to_yaml gave text that cannot be written")
    assert load(path, [], R3GRPOConfig)[0].to_sections() == config.to_sections()


@QUICK
@given(name=st.sampled_from(KEYS), data=st.data())
def test_a_misspelt_setting_is_told_its_right_name(name, data):
    section, key = name
    if len(key) < 4:
        return
    cut = data.draw(st.integers(0, len(key) - 1))
    misspelt = key[:cut] + key[cut + 1 :]
    if any(misspelt in model.model_fields for model in R3GRPOConfig.class_sections().values()):
        return
    with pytest.raises(ConfigError, match=rf"^{section}\.{misspelt}: no such setting; did you mean {section}\."):
        R3GRPOConfig().apply(
            {section: {misspelt: default_of(R3GRPOConfig.class_sections()[section].model_fields[key])}}
        )
