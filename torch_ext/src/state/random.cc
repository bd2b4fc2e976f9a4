// SPDX-License-Identifier: Apache-2.0
#include "ronde/torch/random.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <torch/cuda.h>
#include <torch/serialize.h>
#include <torch/utils.h>

#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "ronde/error.h"
#include "ronde/ronde.h"
#include "ronde/torch/checkpoint_object.h"
#include "torch_ext/src/common/agreement.h"
#include "torch_ext/src/common/tensor_request.h"
#include "torch_ext/src/state/object_bytes.h"

namespace ronde {
namespace {

const char* const kKey = "random_state";

constexpr std::uint64_t kGamma = 0x9e3779b97f4a7c15ULL;

// The n-th number, from 0 on, of SplitMix64 started at `seed`.
std::uint64_t split_mix(std::uint64_t seed, std::uint64_t n) noexcept {
  std::uint64_t z = seed + (n + 1) * kGamma;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

// MurmurHash3's finaliser of 32 bits.
std::uint32_t murmur_mix(std::uint32_t h) noexcept {
  h = (h ^ (h >> 16)) * 0x85ebca6bU;
  h = (h ^ (h >> 13)) * 0xc2b2ae35U;
  return h ^ (h >> 16);
}

std::vector<at::Generator> generators() {
  std::vector<at::Generator> all = {at::globalContext().defaultGenerator(c10::kCPU)};
  for (c10::DeviceIndex i = 0; i < torch::cuda::device_count(); ++i) {
    all.push_back(at::globalContext().defaultGenerator(c10::Device(c10::kCUDA, i)));
  }
  return all;
}

std::vector<at::Tensor> states() {
  std::vector<at::Tensor> all;
  for (at::Generator& generator : generators()) {
    const std::lock_guard<std::mutex> lock(generator.mutex());
    all.push_back(generator.get_state());
  }
  return all;
}

void set_states(const std::vector<at::Tensor>& states) {
  std::vector<at::Generator> all = generators();
  if (states.size() != all.size()) {
    throw UsageError("the checkpoint has the states of " + std::to_string(states.size()) +
                     " generators of this rank (the CPU's and each visible CUDA device's), which "
                     "now has " +
                     std::to_string(all.size()) + ". Make as many devices visible");
  }
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::lock_guard<std::mutex> lock(all[i].mutex());
    all[i].set_state(states[i]);
  }
}

using StatesByRank = std::vector<std::vector<at::Tensor>>;

void write_states(torch::serialize::OutputArchive& archive, const StatesByRank& all) {
  archive.write("ranks", c10::IValue(static_cast<std::int64_t>(all.size())));
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    archive.write("rank" + std::to_string(rank), c10::IValue(all[rank]));
  }
}

std::vector<at::Tensor> read_states(torch::serialize::InputArchive& archive, std::size_t rank) {
  c10::IValue list;
  archive.read("rank" + std::to_string(rank), list);
  std::vector<at::Tensor> states = list.toTensorVector();
  // An archive may be loaded onto a GPU; generators take their states from main memory.
  for (at::Tensor& state : states) state = state.cpu();
  return states;
}

StatesByRank read_states_of_all(torch::serialize::InputArchive& archive, std::size_t ranks) {
  torch::serialize::InputArchive own;
  c10::IValue count;
  if (!archive.try_read(kKey, own) || !own.try_read("ranks", count)) {
    throw UsageError("the archive has no \"random_state\": save_random_state writes it");
  }
  const auto saved = static_cast<std::size_t>(count.toInt());
  if (saved != ranks) {
    throw UsageError("the archive has the random state of " + std::to_string(saved) +
                     " ranks, here are " + std::to_string(ranks) +
                     ". Go on with as many ranks, or seed anew with ronde::seed_all_ranks");
  }
  StatesByRank all;
  for (std::size_t rank = 0; rank < ranks; ++rank) all.push_back(read_states(own, rank));
  return all;
}

// "cpu", "cuda0", "cuda1", ...
std::string generator_name(std::size_t number) {
  return number == 0 ? "cpu" : "cuda" + std::to_string(number - 1);
}

}  // namespace

namespace detail {

CheckpointObject checkpoint_object_of_generators(ProcessSet set) {
  CheckpointObject object{.fixed = false};
  object.tensors = [] {
    CheckpointObject::Tensors all;
    for (at::Tensor& state : states()) {
      all.emplace_back(generator_name(all.size()), std::move(state));
    }
    return all;
  };
  object.load = [set](const std::map<std::string, at::Tensor>& tensors, const std::string&) {
    const std::vector<at::Tensor> former = states();
    std::vector<at::Tensor> saved = former;
    for (std::size_t i = 0; i < saved.size(); ++i) {
      const auto found = tensors.find(generator_name(i));
      if (found != tensors.end()) saved[i] = found->second;
    }
    if (tensors.size() != saved.size()) {
      rank_log(set).warning("ronde::Checkpoint: this rank had " + std::to_string(tensors.size()) +
                            " random generators, and has " + std::to_string(saved.size()) +
                            ": random numbers on GPUs will be others");
    }
    try {
      set_states(saved);
    } catch (...) {
      set_states(former);  // some generators may have changed
      throw;
    }
    return [former](bool keep) {
      if (!keep) set_states(former);
    };
  };
  return object;
}

}  // namespace detail

std::uint64_t rank_seed(std::uint64_t seed, int rank) noexcept {
  const std::uint64_t start = split_mix(seed, 0);
  const auto number = static_cast<std::uint32_t>(rank);
  const std::uint64_t high = split_mix(start, number) >> 32;
  return high << 32 | murmur_mix(static_cast<std::uint32_t>(start) + number);
}

void seed_all_ranks(std::uint64_t seed, ProcessSet process_set) {
  detail::check_member("ronde::seed_all_ranks", process_set);
  torch::manual_seed(rank_seed(seed, rank_in(process_set).value()));
}

void save_random_state(torch::serialize::OutputArchive& archive, const BroadcastOptions& options) {
  const std::string subject = detail::subject_of("save_random_state", options.name);
  const ProcessSet set = options.process_set;
  const std::vector<at::Tensor> mine = states();
  StatesByRank all;
  detail::gather_encoded(subject, detail::list_codec(mine, all), options);
  detail::Statement written;
  if (rank_in(set) == options.root) {
    written.problem = detail::problem_of([&] {
      torch::serialize::OutputArchive own(archive.compilation_unit());
      write_states(own, all);
      archive.write(kKey, own);
    });
  }
  detail::agree(subject, written, set, {.timeout = options.timeout});
}

void load_random_state(torch::serialize::InputArchive& archive, const BroadcastOptions& options) {
  const std::string subject = detail::subject_of("load_random_state", options.name);
  const ProcessSet set = options.process_set;
  detail::check_member(subject, set);
  const auto own = static_cast<std::size_t>(rank_in(set).value());
  // States are small, so every rank gets all of them.
  detail::ObjectCodec codec;
  std::vector<at::Tensor> former;
  codec.problem = detail::problem_of([&] { former = states(); });
  codec.encode = [&] {
    const StatesByRank all = read_states_of_all(archive, ranks_of(set).size());
    set_states(all[own]);
    return detail::bytes_of_archive([&](auto& sent) { write_states(sent, all); });
  };
  codec.decode = [&](const std::string& bytes) {
    detail::read_archive(bytes, [&](auto& received) { set_states(read_states(received, own)); });
    return [](bool) {};
  };
  try {
    detail::broadcast_encoded(subject, codec, options);
  } catch (...) {
    if (!former.empty()) set_states(former);
    throw;
  }
}

}  // namespace ronde
