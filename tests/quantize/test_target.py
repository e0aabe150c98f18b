from pathlib import Path

import pytest

from mlx_platform.quantize.target import ARM, AVX2, VNNI, Target, cpu_flags, target_of


@pytest.mark.parametrize(
    ("machine", "flags", "expected"),
    [
        ("x86_64", {"avx2", "fma"}, AVX2),
        ("x86_64", {"avx2", "avx512_vnni"}, VNNI),
        ("AMD64", {"avx_vnni"}, VNNI),
        ("aarch64", {"asimddp"}, ARM),
        ("riscv64", set(), AVX2),
    ],
)
def test_types_follow_the_processor(machine: str, flags: set[str], expected: Target) -> None:
    assert target_of(machine, flags) == expected


def test_weights_keep_a_bit_free_unless_the_processor_multiplies_without_saturating() -> None:
    assert AVX2.reduce_range
    assert not VNNI.reduce_range


def test_flags_are_those_of_the_first_processor(tmp_path: Path) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text("processor\t: 0\nflags\t\t: fpu avx2\n\nprocessor\t: 1\nflags\t\t: other\n")

    assert cpu_flags(cpuinfo) == {"fpu", "avx2"}


def test_a_kernel_that_lists_no_flags_has_none(tmp_path: Path) -> None:
    assert cpu_flags(tmp_path / "absent") == frozenset()
