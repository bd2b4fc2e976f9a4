// SPDX-License-Identifier: Apache-2.0
#include "backends/nccl/identity.h"

#include <algorithm>

#include "backends/cuda/verdict.h"
#include "backends/nccl/nccl_api.h"

namespace ronde::nccl {
namespace {

std::string name_of(const Candidate& candidate) {
  return "rank " + std::to_string(candidate.rank);
}

/// As NCCL sees it, by host and PCI id. Hosts may bear names that make two of one machine: the UUID
/// tells.
bool share(const Candidate& a, const Candidate& b) {
  const bool has_same_place = a.host == b.host && a.identity.pci_id == b.identity.pci_id;
  return has_same_place || a.identity.uuid == b.identity.uuid;
}

}  // namespace

Identity identity_of(const cuda::Gpu& gpu, int nccl_version) {
  Identity identity{.nccl_version = nccl_version};
  cuda::set_text(identity.pci_id, gpu.pci_id);
  cuda::set_text(identity.uuid, gpu.uuid);
  return identity;
}

std::string shared_gpu(const std::vector<Candidate>& candidates) {
  for (auto one = candidates.begin(); one != candidates.end(); ++one) {
    const auto other = std::find_if(one + 1, candidates.end(),
                                    [&](const Candidate& each) { return share(*one, each); });
    if (other == candidates.end()) continue;
    return name_of(*one) + " and " + name_of(*other) + " are both on " + one->identity.uuid.data() +
           " (" + one->identity.pci_id.data() + ")";
  }
  return {};
}

std::string shared_gpu_error(const std::string& shared) {
  return shared +
         ", but NCCL needs a GPU for each rank. Set RONDE_GPU_BACKEND=mpi, by which ranks share "
         "one, or give each rank its own by CUDA_VISIBLE_DEVICES";
}

std::string mixed_versions(const std::vector<Candidate>& candidates) {
  const Candidate& first = candidates.front();
  for (const Candidate& other : candidates) {
    if (other.identity.nccl_version == first.identity.nccl_version) continue;
    return name_of(first) + " has NCCL " + version_text(first.identity.nccl_version) + ", " +
           name_of(other) + " has " + version_text(other.identity.nccl_version) +
           ": they do not connect. Give all ranks the same one";
  }
  return {};
}

}  // namespace ronde::nccl
