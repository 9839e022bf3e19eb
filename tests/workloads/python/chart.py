"""Lints the Helm chart, and compares its renderings with the plain manifests.

usage: chart.py FOLDER, the folder with the chart and the manifests. Fails with what is wrong."""

import pathlib
import sys

import helm_python
import yaml

WARNING = 2
RELEASE = {"name": "deepres", "namespace": "deepres-system"}
# The plain manifests, with the values of the chart that render them.
MANIFESTS = {"deepres.yaml": {}, "deepres-dra.yaml": {"dra": True}}
# Further values that change what the chart renders.
FURTHER = {"metrics": {"enabled": True}, "wholeGpus": ["6", "7"]}


def objects(texts):
    """Returns the objects of YAML texts by kind and name."""
    all_objects = (one for text in texts for one in yaml.safe_load_all(text) if one)
    return {(one["kind"], one["metadata"]["name"]): one for one in all_objects}


def rendered(chart, values):
    """Returns the chart's objects for these values."""
    texts = chart.render(values, **RELEASE)
    return objects(text for path, text in texts.items() if path.endswith(".yaml"))


def main():
    folder = pathlib.Path(sys.argv[1])
    for values in [*MANIFESTS.values(), FURTHER]:
        report = helm_python.lint(folder / "chart", values, strict=True)
        flaws = report["errors"] + [one for one in report["messages"] if one["severity"] >= WARNING]
        assert not flaws, (values, flaws)
    with helm_python.Chart.load(folder / "chart") as chart:
        for file, values in MANIFESTS.items():
            plain = objects([(folder / file).read_text()])
            # Helm makes the namespace by --create-namespace.
            plain.pop(("Namespace", RELEASE["namespace"]))
            ours = rendered(chart, values)
            for key in plain.keys() | ours.keys():
                assert plain.get(key) == ours.get(key), (file, key, plain.get(key), ours.get(key))
        try:
            rendered(chart, {"dra": True, "wholeGpus": ["0"]})
        except helm_python.HelmRenderError as error:
            assert "exclude each other" in str(error), error
        else:
            raise AssertionError("dra and wholeGpus exclude each other")


main()
