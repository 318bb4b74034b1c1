"""What the router is told."""

import pytest
from pydantic import ValidationError

from services.router.settings import RouterSettings


def settings(*flags):
    return RouterSettings(_cli_parse_args=["--model=m", *flags])


def test_tenants_weights():
    assert settings().weights == {}
    assert settings("--tenant-weights=a=2,b=0.5").weights == {"a": 2.0, "b": 0.5}


@pytest.mark.parametrize(
    "weights", ["a", "a=", "=2", "a=x", "a=0", "a=-1", "a=inf", "a=nan", "a=1e-320", "a=1e308"]
)
def test_weights_that_are_none(weights):
    with pytest.raises(ValidationError, match="tenant"):
        settings(f"--tenant-weights={weights}")


@pytest.mark.parametrize("value", ["inf", "-inf", "nan"])
@pytest.mark.parametrize(
    "name",
    [name for name, field in RouterSettings.model_fields.items() if field.annotation is float],
)
def test_numbers_are_finite(name, value):
    with pytest.raises(ValidationError, match=name):
        settings(f"--{name.replace('_', '-')}={value}")


def test_modes():
    assert settings().disaggregation == "auto"
    assert settings("--disaggregation=never").disaggregation == "never"
    with pytest.raises(ValidationError, match="disaggregation"):
        settings("--disaggregation=sometimes")
