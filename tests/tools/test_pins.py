"""The image is built of pinned packages with hashes, which are those that pyproject.toml asks for."""

import re

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from release.pins import BUILD, EXTRAS, PROJECT, RUN, needed, pinned
from support.source_tree import ROOT

DOCKERFILE = (ROOT / "Dockerfile").read_text()


@pytest.mark.parametrize(
    ("path", "requirements"),
    [(RUN, [*needed(*EXTRAS)]), (BUILD, [*map(Requirement, PROJECT["build-system"]["requires"])])],
    ids=["run", "build"],
)
def test_every_package_that_is_asked_for_is_pinned_to_a_version_that_fits(path, requirements):
    pins = pinned(path)
    unfit = [
        str(one)
        for one in requirements
        if not one.specifier.contains(pins.get(canonicalize_name(one.name), ("0",))[0])
    ]
    assert not unfit, f"`make pins` has to pin these anew: {unfit}"


@pytest.mark.parametrize("path", [RUN, BUILD], ids=["run", "build"])
def test_every_pin_has_hashes_and_none_names_an_address(path):
    text, pins = path.read_text(), pinned(path)
    assert len(pins) >= 4
    assert [name for name, (_, hashes) in pins.items() if not hashes] == []
    assert len(re.findall(r"^[\w.-]+ ?(==|@|>=)", text, re.MULTILINE)) == len(pins), "something is not pinned"
    assert re.findall(r"https?:|file:|--index|--extra-index|--find-links|--trusted", text) == []


def test_the_image_installs_nothing_else():
    installs = re.findall(r"^RUN pip (?:install|wheel) (.*)$", DOCKERFILE, re.MULTILINE)
    assert len(installs) == 4
    for options in installs:
        assert "--require-hashes" in options or "--no-deps" in options, options
        assert "--no-cache-dir" in options
    for path in (RUN, BUILD):
        assert str(path.relative_to(ROOT)) in DOCKERFILE


def test_a_pin_of_another_version_or_without_a_hash_is_noticed(tmp_path):
    path = tmp_path / "requirements.txt"
    path.write_text(
        "redis==6.0 \\\n    --hash=sha256:aa \\\n    --hash=sha256:bb\nrq==2.4 ; sys_platform == 'linux'\n"
    )
    assert pinned(path) == {"redis": ("6.0", 2), "rq": ("2.4", 0)}
