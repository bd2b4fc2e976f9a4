#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""mpijob.py FILE: checks an MPIJob (kubeflow.org/v2beta1) as the operator's own validation does, and that
its launcher starts as many ranks as its workers have slots. Exit status 77 (skipped) without PyYAML."""
import re
import sys

try:
    import yaml
except ImportError:
    print("skipped: no yaml for python3 (Debian: python3-yaml)")
    sys.exit(77)


def a_positive_number(value):
    return isinstance(value, int) and value >= 1


def a_path(value):
    return str(value).startswith("/")


# MPIJobSpec, RunPolicy and ReplicaSpec in the operator's pkg/apis/kubeflow/v2beta1/types.go. Each field has the
# values it may have, or what it must be; None: anything, or nothing.
REPLICA = {"replicas": a_positive_number, "restartPolicy": ("Never", "OnFailure"), "template": None}
JOB = {
    "apiVersion": ("kubeflow.org/v2beta1",), "kind": ("MPIJob",), "metadata": None,
    "spec": {
        "slotsPerWorker": a_positive_number, "mpiImplementation": ("OpenMPI", "Intel", "MPICH"),
        "sshAuthMountPath": a_path, "runLauncherAsWorker": None, "launcherCreationPolicy": None,
        "runPolicy": {"cleanPodPolicy": ("None", "Running", "All"), "ttlSecondsAfterFinished": None,
                      "activeDeadlineSeconds": None, "backoffLimit": None, "schedulingPolicy": None,
                      "suspend": None, "managedBy": None},
        "mpiReplicaSpecs": {"Launcher": REPLICA, "Worker": REPLICA}}}
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")


def field_problems(value, rule, where):
    if isinstance(rule, tuple) and value not in rule:
        yield f"{where} is {value!r}, not one of {', '.join(rule)}"
    elif callable(rule) and not rule(value):
        yield f"{where} is {value!r}, not {rule.__name__.replace('_', ' ')}"
    elif isinstance(rule, dict):
        fields = value or {}
        yield from (f"{where} has no field {key}" for key in fields.keys() - rule.keys())
        for key, inner in rule.items():
            yield from field_problems(fields.get(key), inner, f"{where}.{key}")


def pod_problems(role, pod):
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    if not pod.get("containers"):
        yield f"{role} has no container"
    for container in pod.get("containers") or []:
        if not (container.get("name") and container.get("image")):
            yield f"{role}: a container needs name and image"
        texts = container.get("args", []) + [variable.get("value") for variable in container.get("env", [])]
        yield from (f"{role}: {text!r} must be quoted" for text in texts if not isinstance(text, str))
        for mount in container.get("volumeMounts", []):
            if mount["name"] not in volumes:
                yield f"{role}: there is no volume {mount['name']}"


def rank_problems(job):
    slots, replicas = job["spec"]["slotsPerWorker"], job["spec"]["mpiReplicaSpecs"]
    workers = replicas["Worker"]["replicas"]
    if replicas["Launcher"]["replicas"] != 1:
        yield "there is one launcher"
    last_host = f"{job.get('metadata', {}).get('name')}-worker-{workers - 1}"
    if not DNS_LABEL.fullmatch(last_host):
        yield f"{last_host} is no name for a host"
    arguments = replicas["Launcher"]["template"]["spec"]["containers"][0].get("args", [])
    ranks = int(arguments[arguments.index("-n") + 1]) if "-n" in arguments else None
    if ranks != workers * slots:
        yield f"mpiexec -n {ranks}, but {workers} workers have {slots} slots each"


with open(sys.argv[1], encoding="utf-8") as file:
    job = yaml.safe_load(file)
problems = list(field_problems(job, JOB, "the job"))
if not problems:
    for role, replica in job["spec"]["mpiReplicaSpecs"].items():
        problems += pod_problems(role, replica.get("template", {}).get("spec", {}))
problems = problems or list(rank_problems(job))
print("\n".join(f"{sys.argv[1]}: {problem}" for problem in problems) or f"{sys.argv[1]}: an MPIJob")
sys.exit(1 if problems else 0)
