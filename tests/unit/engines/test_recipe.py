import pytest

from agent_tools.engines.recipe import FLAVOURS, MAX_PACKAGES, Recipe, recipe_of
from agent_tools.errors import InvalidParams


def test_nothing_asked_for_is_the_lean_image() -> None:
    assert Recipe.read() == Recipe.read(None, [], "") == Recipe() == recipe_of(()) == recipe_of(Recipe())
    assert Recipe().below is None


def test_packages_alone_are_a_recipe() -> None:
    assert recipe_of(["polars"]) == Recipe(("polars",))


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_layers_lead_down_to_an_image_that_stands_alone(flavour: str) -> None:
    recipe: Recipe | None = Recipe.read(["polars"], ["jq"], flavour)
    below = []
    while recipe is not None:
        recipe = recipe.below
        below.append(recipe.flavour if recipe else None)
    further = {"lean": [], "newest": [], "office": ["full", "lean"]}.get(flavour, ["lean"])
    assert below == [flavour, *further, None]


@pytest.mark.parametrize(
    "name", ["graphviz", "g++", "libgl1", "7zip", "jq=1.7.1-6", "git=1:2.47.3-0+deb13u1", "a.b+c-d"]
)
def test_names_of_debian_packages_are_taken(name: str) -> None:
    assert Recipe.read((), [name]).debian_packages == (name,)


@pytest.mark.parametrize(
    "name",
    [
        *("", " ", "a", "Git", "-o=x", "--allow", "git-", "git ", "git\n", "git;reboot", "git/sid", "git:i386", "../x"),
        *("./x.deb", "http://x/y.deb", "$(id)", "git=", "git=-1", "git==1", "g*", "é", "a\0b", None, 3, b"git"),
    ],
    ids=repr,
)
def test_anything_else_is_refused(name: object) -> None:
    with pytest.raises(InvalidParams, match="debian_packages has"):
        Recipe.read((), ["jq", name])


@pytest.mark.parametrize("flavour", ["fat", "LEAN", 3, ["lean"]])
def test_a_flavour_that_there_is_not_is_refused(flavour: object) -> None:
    with pytest.raises(InvalidParams, match="lean, full, agent, newest"):
        Recipe.read(flavour=flavour)


@pytest.mark.parametrize("option", ["packages", "debian_packages"])
def test_lists_are_lists_and_bounded(option: str) -> None:
    with pytest.raises(InvalidParams, match=f"{option}='git' is one string"):
        Recipe.read(**{option: "git"})
    with pytest.raises(InvalidParams, match=f"{option} has {MAX_PACKAGES + 1} entries"):
        Recipe.read(**{option: ["git"] * (MAX_PACKAGES + 1)})
    with pytest.raises(InvalidParams, match=f"{option}=3 is not"):
        Recipe.read(**{option: 3})
