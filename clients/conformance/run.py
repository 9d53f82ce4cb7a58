#!/usr/bin/env python3
"""Runs the conformance suite: `run.py python|typescript … [--only TEXT]`, and with `--broken` against clients that are broken on purpose."""

from __future__ import annotations

import argparse
import os
import pathlib
import re
import subprocess
import sys
import time
import tomllib
import traceback
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from packages import HERE, LANGUAGES, target
from scenario import Scenario, folder_name, read
from world import PATIENCE_S, Failed, World

# Scenarios mostly wait.
AT_ONCE = 8
# A broken client does not do what a scenario waits for. Those that are not broken do it in much less.
BROKEN_PATIENCE_S = 15.0


class Case:
    """A scenario for one client."""

    def __init__(self, language: Any, told: dict[str, Any], plain: bool, patience: float, broken: dict[str, Any] | None = None) -> None:
        self.language, self.told, self.plain, self.patience, self.broken = language, told, plain, patience, broken
        self.title = f"{language.name}: {told['title']}{' (plain)' if plain else ''}"
        if broken is not None:
            self.title = f"{language.name}, broken: {broken['title']}: {told['title']}"
        self.folder = target() / "worlds" / folder_name(self.title)

    def run(self) -> str | None:
        """What is wrong; `None` if nothing is."""
        world = None
        try:
            world = World(self.folder, self.language, self.told.get("server", {}), self.plain, self.patience)
            Scenario(self.told, world).run()
        except Failed as failed:
            return str(failed)
        except Exception:
            return f"the suite fails: {traceback.format_exc()}"
        finally:
            if world is not None:
                world.close()
                (self.folder / "requests.log").write_text("".join(f"{seen}\n" for seen in world.proxy.seen))
        return None

    def verdict(self) -> tuple[bool, str]:
        began = time.monotonic()
        wrong = self.run()
        took = time.monotonic() - began
        if self.broken is None:
            return wrong is None, f"{took:5.1f} s  {self.title}" + (f"\n         {wrong}\n         see {self.folder}" if wrong else "")
        if wrong is None:
            return False, f"{took:5.1f} s  {self.title}\n         it passes"
        right = re.search(self.broken["because"], wrong) is not None
        return right, f"{took:5.1f} s  {self.title}\n         fails: {wrong[:400 if right else 4000]}"


def cases(languages: list[Any], scenarios: list[dict[str, Any]]) -> list[Case]:
    found = []
    for told in scenarios:
        for language in languages:
            lacks = set(told.get("needs", ())) - set(language.abilities)
            if lacks:
                print(f"   does not apply  {language.name}: {told['title']}: {', '.join(sorted(lacks))}")
                continue
            found.append(Case(language, told, False, PATIENCE_S))
            if told.get("plain") and "plain" in language.abilities:
                found.append(Case(language, told, True, PATIENCE_S))
    return found


def broken_cases(languages: list[Any], scenarios: list[dict[str, Any]]) -> list[Case]:
    by_title = {told["title"]: told for told in scenarios}
    found = []
    for told in tomllib.loads((HERE / "broken.toml").read_text())["broken"]:
        for language in languages:
            if language.name == told["client"]:
                folder = target() / "broken" / f"{language.name}-{folder_name(told['title'])}"
                copy = language.broken(folder, told)
                found.append(Case(copy, by_title[told["fails"]], told.get("plain", False), BROKEN_PATIENCE_S, told))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("client", nargs="+", choices=sorted(LANGUAGES))
    parser.add_argument("--only", default="", help="only scenarios whose file or title has this")
    parser.add_argument("--broken", action="store_true", help="the broken clients, each of which must fail its scenario")
    parser.add_argument("--installed", action="store_true", help="do not build the packages again")
    parser.add_argument("--at-once", type=int, default=AT_ONCE, help=f"scenarios at the same time ({AT_ONCE})")
    given = parser.parse_args()
    if "TURNWISE_BIN" not in os.environ:
        parser.error("TURNWISE_BIN names the server's program")
    began = time.monotonic()
    languages = [LANGUAGES[name](target() / name) for name in given.client]
    with ThreadPoolExecutor(given.at_once) as pool:
        if not given.installed:
            list(pool.map(lambda language: language.build(), languages))
            print(f"{time.monotonic() - began:5.1f} s  the packages are built and installed", flush=True)
        scenarios = read(sorted((HERE / "scenarios").glob("*.toml")))
        selected = [told for told in scenarios if given.only in f"{told['file']} {told['title']}"]
        found = broken_cases(languages, scenarios) if given.broken else cases(languages, selected)
        failed = 0
        # The long ones first.
        found.sort(key=lambda case: -case.told.get("long", 0))
        for right, text in pool.map(lambda case: case.verdict(), found):
            print(("ok   " if right else "WRONG") + text, flush=True)
            failed += not right
    print(f"{len(found) - failed} of {len(found)} in {time.monotonic() - began:.0f} s")
    sys.exit(1 if failed or not found else 0)


if __name__ == "__main__":
    main()
