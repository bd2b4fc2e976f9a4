// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <string>
#include <vector>

#include "backends/cuda/device_query.h"

namespace ronde::nccl {

/// What a rank tells the others before they connect: plain bytes, for the control plane.
struct Identity {
  std::array<char, 16> pci_id{};
  std::array<char, 48> uuid{};
  int nccl_version = 0;
};

Identity identity_of(const cuda::Gpu& gpu, int nccl_version);

/// A rank that is to be connected.
struct Candidate {
  int rank = 0;  ///< as it is called in texts
  int host = 0;
  Identity identity;
};

/// Who shares a GPU, which NCCL cannot serve: "rank 0 and rank 1 are both on GPU-... (0000:1b:00.0)
/// of one host". Empty if nobody does.
std::string shared_gpu(const std::vector<Candidate>& candidates);

/// The text of an error for that: what to do about it is said too.
std::string shared_gpu_error(const std::string& shared);

/// Which ranks have different versions of NCCL, which do not connect. Empty if none have.
std::string mixed_versions(const std::vector<Candidate>& candidates);

}  // namespace ronde::nccl
