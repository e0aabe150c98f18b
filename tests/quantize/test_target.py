from pathlib import Path

import pytest

from mlx_platform.core.errors import UsageError
from mlx_platform.quantize.target import (
    ARM,
    AVX2,
    TARGETS,
    VNNI,
    Target,
    caution,
    cpu_flags,
    parse_target,
    speed_of,
    target_of,
    this_machine,
)


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


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_is_found_by_its_name(name: str) -> None:
    assert parse_target(name).name == name


@pytest.mark.parametrize(
    ("machine", "flags", "says"),
    [
        ("x86_64", {"avx2", "avx_vnni"}, "one instruction (avx_vnni)"),
        ("x86_64", {"avx2"}, "no VNNI"),
        ("x86_64", set(), "not known"),
        ("aarch64", {"asimddp", "fp"}, "one instruction (asimddp)"),
        ("arm64", set(), "smaller, not faster"),
    ],
)
def test_what_a_processor_makes_of_integers_is_said(machine: str, flags: set[str], says: str) -> None:
    assert says in speed_of(machine, flags)


def test_no_target_is_the_machines_family_in_its_safe_form() -> None:
    assert parse_target("auto") is (ARM if this_machine() is ARM else AVX2)


def test_an_unknown_target_is_named_with_the_closest() -> None:
    with pytest.raises(UsageError, match="'x86-avx'") as caught:
        parse_target("x86-avx")

    assert "x86-avx2" in caught.value.hint


@pytest.mark.parametrize(
    ("target", "machine", "says"),
    [
        (AVX2, VNNI, "--target x86-vnni"),
        (VNNI, AVX2, "not those of the target"),
        (ARM, AVX2, "not those of the target"),
    ],
)
def test_a_target_unlike_this_machine_is_commented_on(target: Target, machine: Target, says: str) -> None:
    assert says in caution(target, machine)


@pytest.mark.parametrize("target", TARGETS.values())
def test_a_target_like_this_machine_is_not(target: Target) -> None:
    assert caution(target, target) == ""
