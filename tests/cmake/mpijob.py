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

# The fields of MPIJobSpec, RunPolicy and ReplicaSpec in the operator's pkg/apis/kubeflow/v2beta1/types.go.
SPEC = {"slotsPerWorker", "runLauncherAsWorker", "runPolicy", "mpiReplicaSpecs", "sshAuthMountPath",
        "launcherCreationPolicy", "mpiImplementation"}
RUN_POLICY = {"cleanPodPolicy", "ttlSecondsAfterFinished", "activeDeadlineSeconds", "backoffLimit",
              "schedulingPolicy", "suspend", "managedBy"}
REPLICA = {"replicas", "template", "restartPolicy"}
DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")

problems = []


def expect(condition, text):
    if not condition:
        problems.append(text)


def expect_one_of(value, allowed, where):
    expect(value in allowed, f"{where} is {value!r}, not one of {', '.join(allowed)}")


def expect_keys(mapping, allowed, where):
    for key in mapping.keys() - allowed:
        problems.append(f"{where} has no field {key}")


def check_replicas(role, replica):
    where = f"spec.mpiReplicaSpecs.{role}"
    expect_keys(replica, REPLICA, where)
    expect_one_of(replica.get("restartPolicy"), ("Never", "OnFailure"), f"{where}.restartPolicy")
    expect(isinstance(replica.get("replicas"), int) and replica["replicas"] >= 1,
           f"{where}.replicas must be a positive number")
    pod = replica.get("template", {}).get("spec", {})
    containers = pod.get("containers") or []
    expect(containers, f"{where} has no container")
    volumes = {volume["name"] for volume in pod.get("volumes", [])}
    for container in containers:
        expect(container.get("name") and container.get("image"), f"{where}: a container needs name and image")
        for argument in container.get("args", []):
            expect(isinstance(argument, str), f"{where}: the argument {argument!r} must be quoted")
        for variable in container.get("env", []):
            expect(isinstance(variable.get("value"), str), f"{where}: {variable['name']} must be quoted")
        for mount in container.get("volumeMounts", []):
            expect(mount["name"] in volumes, f"{where}: there is no volume {mount['name']}")


def ranks_started(launcher):
    arguments = launcher["template"]["spec"]["containers"][0].get("args", [])
    return int(arguments[arguments.index("-n") + 1]) if "-n" in arguments else None


def check(job):
    expect(job.get("apiVersion") == "kubeflow.org/v2beta1", "apiVersion must be kubeflow.org/v2beta1")
    expect(job.get("kind") == "MPIJob", "kind must be MPIJob")
    spec = job.get("spec", {})
    expect_keys(spec, SPEC, "spec")
    expect_keys(spec.get("runPolicy", {}), RUN_POLICY, "spec.runPolicy")
    expect_one_of(spec.get("runPolicy", {}).get("cleanPodPolicy"), ("None", "Running", "All"),
                  "spec.runPolicy.cleanPodPolicy")
    expect_one_of(spec.get("mpiImplementation"), ("OpenMPI", "Intel", "MPICH"), "spec.mpiImplementation")
    expect(str(spec.get("sshAuthMountPath", "")).startswith("/"), "spec.sshAuthMountPath must be a path")
    slots = spec.get("slotsPerWorker")
    expect(isinstance(slots, int) and slots >= 1, "spec.slotsPerWorker must be a positive number")
    replicas = spec.get("mpiReplicaSpecs", {})
    expect(replicas.keys() == {"Launcher", "Worker"}, "spec.mpiReplicaSpecs must be Launcher and Worker")
    for role, replica in replicas.items():
        check_replicas(role, replica)
    if problems:
        return
    expect(replicas["Launcher"]["replicas"] == 1, "there is one launcher")
    workers = replicas["Worker"]["replicas"]
    last_host = f"{job.get('metadata', {}).get('name')}-worker-{workers - 1}"
    expect(DNS_LABEL.fullmatch(last_host), f"{last_host} is no name for a host")
    ranks = ranks_started(replicas["Launcher"])
    expect(ranks == workers * slots, f"mpiexec -n {ranks}, but {workers} workers have {slots} slots each")


with open(sys.argv[1], encoding="utf-8") as file:
    check(yaml.safe_load(file))
if problems:
    print("\n".join(f"{sys.argv[1]}: {problem}" for problem in problems))
    sys.exit(1)
print(f"{sys.argv[1]}: an MPIJob")
