# SPDX-License-Identifier: Apache-2.0
"""Golden files, schema version 1: torch tensors in, HDF5 out, and back."""

import json
import os
import tempfile

import h5py
import numpy as np
import torch

SCHEMA = "tokenview.golden"
SCHEMA_VERSION = 1


def write_tensor(group, name, tensor):
    """Writes one tensor; bfloat16 goes as its 16 bits, marked by the attribute `dtype`."""
    tensor = tensor.detach().cpu().contiguous()
    if tensor.dtype == torch.bfloat16:
        dataset = group.create_dataset(name, data=tensor.view(torch.int16).numpy().view(np.uint16))
        dataset.attrs["dtype"] = "bfloat16"
    else:
        group.create_dataset(name, data=tensor.numpy())


def read_tensor(dataset):
    data = dataset[()]
    if dataset.attrs.get("dtype") == "bfloat16":
        return torch.from_numpy(data.view(np.int16)).view(torch.bfloat16)
    return torch.from_numpy(data)


def write_golden(path, golden):
    """Writes `golden` to `path`; a file that was there is replaced only once the new one is whole.

    golden: {attributes: {name: str}, config: dict, weights: {name: tensor},
             cases: {case: {inputs: {..}, taps: {..}, mtp: [{..} a step], draft_ids: tensor}}}
    """
    folder = os.path.dirname(os.path.abspath(path))
    handle, unfinished = tempfile.mkstemp(dir=folder, prefix=os.path.basename(path), suffix=".part")
    os.close(handle)
    try:
        with h5py.File(unfinished, "w") as file:
            file.attrs["schema"] = SCHEMA
            file.attrs["schema_version"] = SCHEMA_VERSION
            for name, value in golden["attributes"].items():
                file.attrs[name] = value
            file["config"] = json.dumps(golden["config"], sort_keys=True)
            weights = file.create_group("weights")
            for name, tensor in golden["weights"].items():
                write_tensor(weights, name, tensor)
            for case, content in golden["cases"].items():
                group = file.create_group(f"cases/{case}")
                for kind in ("inputs", "taps"):
                    for name, tensor in content[kind].items():
                        write_tensor(group.require_group(kind), name, tensor)
                for step, taps in enumerate(content["mtp"]):
                    for name, tensor in taps.items():
                        write_tensor(group.require_group(f"mtp/step{step}"), name, tensor)
                write_tensor(group.require_group("mtp"), "draft_ids", content["draft_ids"])
        os.chmod(unfinished, 0o644)
        os.replace(unfinished, path)
    except BaseException:
        os.unlink(unfinished)
        raise


def read_golden(path):
    """The inverse of write_golden. Raises ValueError for another schema."""
    with h5py.File(path, "r") as file:
        found = (file.attrs.get("schema"), file.attrs.get("schema_version"))
        if found != (SCHEMA, SCHEMA_VERSION):
            raise ValueError(f"{path}: schema is {found}, expected {(SCHEMA, SCHEMA_VERSION)}")

        def tensors(group):
            return {name: read_tensor(group[name]) for name in group}

        cases = {}
        for case, group in file["cases"].items():
            steps = sorted(name for name in group["mtp"] if name.startswith("step"))
            cases[case] = {
                "inputs": tensors(group["inputs"]),
                "taps": tensors(group["taps"]),
                "mtp": [tensors(group["mtp"][step]) for step in steps],
                "draft_ids": read_tensor(group["mtp/draft_ids"]),
            }
        return {
            "attributes": {
                name: value for name, value in file.attrs.items() if not name.startswith("schema")
            },
            "config": json.loads(file["config"][()]),
            "weights": tensors(file["weights"]),
            "cases": cases,
        }
