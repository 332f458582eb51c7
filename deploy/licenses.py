"""List what an installation of bertree consists of, with licenses: a table, or with --json a CycloneDX document.

    python deploy/licenses.py --extras serve,search > licenses.md

Everything is read from the metadata of the installed packages. What bertree needs is followed through all requirements
that apply to this machine; a package that is not installed is left out.
"""

import argparse
import json
import re
from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement

COPYLEFT = re.compile(r"\b(A?GPL|LGPL|MPL|EPL|CDDL|Mozilla|General Public)", re.IGNORECASE)


def installed(name: str, extras: set[str], packages: dict[str, Distribution]) -> None:
    """Add a package and what it needs to those that are known."""
    try:
        package = distribution(name)
    except PackageNotFoundError:
        return
    packages[re.sub(r"[-_.]+", "-", package.metadata["Name"]).lower()] = package
    for line in package.requires or ():
        requirement = Requirement(line)
        applies = requirement.marker is None or any(requirement.marker.evaluate({"extra": e}) for e in {"", *extras})
        key = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if applies and (key not in packages or requirement.extras):
            installed(requirement.name, requirement.extras, packages)


def license_of(package: Distribution) -> str:
    """The license by its SPDX expression, else by the field or the classifiers of older metadata."""
    metadata = package.metadata
    if expression := metadata.get("License-Expression"):
        return expression
    classifiers = [line for line in metadata.get_all("Classifier") or () if line.startswith("License ::")]
    named = [line.rpartition(" :: ")[2] for line in classifiers if not line.endswith("OSI Approved")]
    text = (metadata.get("License") or "").strip().splitlines()
    return " AND ".join(named) or (text[0] if text else "not stated")


def table(packages: dict[str, Distribution]) -> Iterator[str]:
    yield "| package | version | license | copyleft |"
    yield "| --- | --- | --- | --- |"
    for name, package in sorted(packages.items()):
        terms = license_of(package)
        yield f"| {name} | {package.version} | {terms} | {'yes' if COPYLEFT.search(terms) else ''} |"


def document(packages: dict[str, Distribution]) -> str:
    """The packages as a software bill of materials (CycloneDX 1.6)."""
    components = [
        {
            "type": "library",
            "name": name,
            "version": package.version,
            "purl": f"pkg:pypi/{name}@{package.version}",
            "licenses": [{"license": {"name": license_of(package)}}],
        }
        for name, package in sorted(packages.items())
    ]
    return json.dumps(
        {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1, "components": components}, indent=2
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="List installed packages with their licenses.")
    parser.add_argument("--extras", default="", help="extras of bertree, divided by commas")
    parser.add_argument("--json", action="store_true", help="a CycloneDX document")
    options = parser.parse_args()
    packages: dict[str, Distribution] = {}
    installed("bertree", set(options.extras.split(",")), packages)
    print(document(packages) if options.json else "\n".join(table(packages)))


if __name__ == "__main__":
    main()
