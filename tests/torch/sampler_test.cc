// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>

#include "tests/torch/support.h"
#include "torch_ext/src/training/permutation.h"

namespace ronde_test::sampler_test {
namespace {

using ronde::DistributedSampler;
using ronde::DistributedSamplerOptions;
using ronde::Remainder;

using Indices = std::vector<std::size_t>;

Indices drain(DistributedSampler& sampler, std::size_t batch_size) {
  Indices all;
  while (const auto batch = sampler.next(batch_size)) {
    CHECK(batch->size() <= batch_size);
    all.insert(all.end(), batch->begin(), batch->end());
  }
  CHECK_FALSE(sampler.next(batch_size));
  return all;
}

// Returns the indices of a rank in the first epoch of ten samples.
Indices deal(int rank, int ranks, Remainder remainder) {
  DistributedSampler sampler(10, {.seed = 7, .remainder = remainder, .rank = rank, .size = ranks});
  sampler.reset();
  return drain(sampler, 3);
}

void transfer(const DistributedSampler& from, DistributedSampler& to,
              std::optional<std::size_t> position = std::nullopt) {
  torch::serialize::OutputArchive out;
  position ? from.save(out, *position) : from.save(out);
  torch::serialize::InputArchive in = reread(out);
  to.load(in);
}

// A dataset whose samples are their own indices.
struct Numbers : torch::data::datasets::BatchDataset<Numbers, std::vector<std::size_t>> {
  explicit Numbers(std::size_t count) : count_(count) {}
  std::vector<std::size_t> get_batch(at::ArrayRef<std::size_t> indices) override {
    return indices.vec();
  }
  std::optional<std::size_t> size() const override { return count_; }

 private:
  std::size_t count_;
};

TEST_CASE("permutations differ by seed and epoch, and never change", "[n1]") {
  // Written down once: another result breaks every resumed run.
  CHECK(ronde::detail::permutation(10, 0, 0) == Indices{8, 2, 3, 5, 1, 6, 9, 7, 0, 4});
  CHECK(ronde::detail::permutation(10, 0x123456789abcdefULL, 3) ==
        Indices{5, 0, 2, 4, 9, 7, 1, 3, 6, 8});
  const Indices base = ronde::detail::permutation(1000, 1, 0);
  Indices identity(1000);
  std::iota(identity.begin(), identity.end(), std::size_t{0});
  CHECK(std::ranges::is_permutation(base, identity));
  CHECK(base != identity);
  CHECK(ronde::detail::permutation(1000, 2, 0) != base);
  CHECK(ronde::detail::permutation(1000, 1, 1) != base);
  CHECK(ronde::detail::permutation(1000, 1ULL << 32, 0) != base);
}

TEST_CASE("ranks get equally many samples, where the rest wraps around or is dropped", "[n1]") {
  const Indices permutation = ronde::detail::permutation(10, 7, 0);
  for (const int ranks : {1, 2, 3, 4, 7, 15}) {
    for (const Remainder remainder : {Remainder::Pad, Remainder::Drop}) {
      CAPTURE(ranks, remainder == Remainder::Pad);
      const int each = (remainder == Remainder::Pad ? 10 + ranks - 1 : 10) / ranks;
      if (each == 0) {
        check_refused([&] { deal(0, ranks, remainder); }, {"Remainder::Pad"});
        continue;
      }
      for (int rank = 0; rank < ranks; ++rank) {
        // Position k is the (k / N)-th of rank k mod N.
        Indices expected;
        for (int k = rank; k < each * ranks; k += ranks) {
          expected.push_back(permutation[index(k % 10)]);
        }
        CHECK(deal(rank, ranks, remainder) == expected);
      }
    }
  }
}

TEST_CASE("a resumed epoch goes on where it was, with any number of ranks", "[n1]") {
  constexpr std::size_t kSamples = 50;
  struct Row {
    std::size_t taken;                 // by each of four ranks, in epoch 2
    std::optional<std::size_t> given;  // by the caller, whose loader took more than it used
    std::size_t epoch, position;       // to go on at
  };
  for (const Row& row :
       {Row{3, std::nullopt, 2, 12}, Row{8, 4, 2, 4}, Row{13, std::nullopt, 3, 0}}) {
    DistributedSampler before(kSamples, {.seed = 9, .rank = 1, .size = 4});
    before.set_epoch(2);
    before.reset();
    before.next(row.taken);
    CHECK(before.epoch() == 2);
    CHECK(before.position() == 4 * row.taken);
    const Indices order = ronde::detail::permutation(kSamples, 9, row.epoch);
    for (const std::size_t ranks : {1U, 3U, 4U, 5U}) {
      const std::size_t rest = (kSamples - row.position + ranks - 1) / ranks * ranks;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        CAPTURE(row.taken, ranks, rank);
        DistributedSampler after(
            kSamples, {.seed = 9, .rank = static_cast<int>(rank), .size = static_cast<int>(ranks)});
        transfer(before, after, row.given);
        // A loop may start before begin(), at the epoch that load() sets.
        CHECK(after.epoch() == row.epoch);
        CHECK(after.position() == row.position);
        after.reset();
        CHECK(after.epoch() == row.epoch);
        CHECK(after.position() == row.position);
        // Rank k mod N has position k: the first position is not always rank 0's.
        Indices expected;
        for (std::size_t k = row.position; k < row.position + rest; ++k) {
          if (k % ranks == rank) expected.push_back(order[k % kSamples]);
        }
        CHECK(drain(after, 4) == expected);
        // The next epoch is a whole one again.
        after.reset();
        CHECK(after.epoch() == row.epoch + 1);
        CHECK(drain(after, 4).size() == after.samples_per_rank());
      }
    }
  }
}

TEST_CASE("impossible samplers, and state of another sampler, are refused", "[n1]") {
  check_refused([] { DistributedSampler(0, {.rank = 0, .size = 1}); }, {"empty"});
  check_refused([] { DistributedSampler(4, {.rank = 2, .size = 2}); }, {"rank 2"});
  check_refused([] { DistributedSampler(4, {.rank = 0, .size = 0}); }, {"size 0"});
  const DistributedSampler saved(10, {.seed = 1, .rank = 0, .size = 1});
  const auto check = [&](std::size_t samples, const DistributedSamplerOptions& options,
                         const std::string& part) {
    DistributedSampler other(samples, options);
    check_refused([&] { transfer(saved, other); }, {part});
  };
  check(10, {.seed = 2, .rank = 0, .size = 1}, "seed");
  check(11, {.seed = 1, .rank = 0, .size = 1}, "dataset size");
  check(10, {.seed = 1, .shuffle = false, .rank = 0, .size = 1}, "shuffle");
  torch::serialize::OutputArchive out;
  out.write("something", c10::IValue(1));
  torch::serialize::InputArchive in = reread(out);
  check_refused([&] { DistributedSampler(saved).load(in); }, {"not written by"});
}

TEST_CASE("a DataLoader's epochs advance by themselves, and set_epoch reaches its copy", "[n1]") {
  for (const std::size_t workers : {0U, 2U}) {
    CAPTURE(workers);
    DistributedSampler sampler(12, {.seed = 4, .rank = 1, .size = 2});
    auto loader = torch::data::make_data_loader(
        Numbers(12), sampler,
        torch::data::DataLoaderOptions().batch_size(2).workers(workers).enforce_ordering(true));
    const auto check_epoch = [&](std::size_t epoch, std::size_t first = 0) {
      Indices seen;
      for (const auto& batch : *loader) seen.insert(seen.end(), batch.begin(), batch.end());
      const Indices order = ronde::detail::permutation(12, 4, epoch);
      Indices own;
      for (std::size_t k = first + 1; k < 12; k += 2) own.push_back(order[k]);
      CHECK(seen == own);
    };
    check_epoch(0);
    CHECK(sampler.epoch() == 0);
    check_epoch(1);
    sampler.set_epoch(17);
    CHECK(sampler.epoch() == 17);
    check_epoch(17);
    check_epoch(18);
    sampler.set_epoch(3, 4);
    check_epoch(3, 4);
    check_epoch(4);
  }
}

TEST_CASE("rank and size come from Ronde, and samples in order where they are not shuffled") {
  DistributedSampler sampler(20, {.shuffle = false});
  sampler.reset();
  Indices expected;
  for (int k = ronde::rank(); k < 20; k += ronde::size()) expected.push_back(index(k));
  CHECK(drain(sampler, 2) == expected);
}

}  // namespace
}  // namespace ronde_test::sampler_test
