import numpy as np
import pytest

from trispark_lab import e4m3


def test_all_codes_survive_decode_and_encode() -> None:
    codes = np.array([code for code in range(256) if code & 0x7F != 0x7F], dtype=np.uint8)
    assert np.array_equal(e4m3.encode_exact(e4m3.E4M3_VALUES[codes]), codes)
    assert np.isnan(e4m3.E4M3_VALUES[[0x7F, 0xFF]]).all()


@pytest.mark.parametrize(
    ("code", "value"),
    [(0x00, 0.0), (0x01, 2.0**-9), (0x07, 7 * 2.0**-9), (0x08, 2.0**-6), (0x38, 1.0), (0xB8, -1.0), (0x7E, 448.0)],
)
def test_known_values(code: int, value: float) -> None:
    assert e4m3.E4M3_VALUES[code] == value


@pytest.mark.parametrize("value", [17.0, 449.0, 1e9, 2.0**-10, float("nan"), float("inf"), 0.3])
def test_what_has_no_code_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="no exact"):
        e4m3.encode_exact(np.array([1.0, value], dtype=np.float32))


def test_negative_zero_keeps_its_sign() -> None:
    assert e4m3.encode_exact(np.array([-0.0], dtype=np.float32))[0] == 0x80


def test_scales_are_powers_of_two() -> None:
    assert e4m3.UE8M0_VALUES[127] == 1.0
    assert e4m3.UE8M0_VALUES[130] == 8.0
    assert e4m3.UE8M0_VALUES[0] == np.float32(2.0**-127)
    assert np.isnan(e4m3.UE8M0_VALUES[255])


def test_dequantise_scales_each_tile() -> None:
    codes = np.full((33, 64), 0x38, dtype=np.uint8)
    scales = np.array([[127, 128], [129, 130]], dtype=np.uint8)
    values = e4m3.dequantise(codes, scales)
    assert (values[:32, :32] == 1).all()
    assert (values[:32, 32:] == 2).all()
    assert values[32, 0] == 4
    assert values[32, 63] == 8
