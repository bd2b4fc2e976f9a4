// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numeric>
#include <set>
#include <sstream>

#include "support.h"
#include "torch_ext/src/permutation.h"

namespace ronde_test::sampler_test {

using ronde::DistributedSampler;
using ronde::DistributedSamplerOptions;
using ronde::Remainder;

namespace {

using Indices = std::vector<std::size_t>;

Indices drain(DistributedSampler& sampler, std::size_t batch_size) {
  Indices all;
  while (const auto batch = sampler.next(batch_size)) {
    all.insert(all.end(), batch->begin(), batch->end());
  }
  return all;
}

// What each rank is given in one epoch.
std::vector<Indices> deal(std::size_t samples, int ranks, Remainder remainder,
                          std::size_t epoch = 0) {
  std::vector<Indices> dealt;
  for (int r = 0; r < ranks; ++r) {
    DistributedSampler sampler(samples,
                               {.seed = 7, .remainder = remainder, .rank = r, .size = ranks});
    sampler.set_epoch(epoch);
    sampler.reset();
    dealt.push_back(drain(sampler, 3));
  }
  return dealt;
}

// Global order: position k is the (k / N)-th of rank k mod N.
Indices interleave(const std::vector<Indices>& dealt) {
  Indices order;
  for (std::size_t i = 0; i < dealt[0].size(); ++i) {
    for (const Indices& rank : dealt) order.push_back(rank.at(i));
  }
  return order;
}

void transfer(const DistributedSampler& from, DistributedSampler& to,
              std::optional<std::size_t> position = std::nullopt) {
  torch::serialize::OutputArchive out;
  if (position) {
    from.save(out, *position);
  } else {
    from.save(out);
  }
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

}  // namespace

TEST_CASE("the permutation of a seed and an epoch never changes", "[n1]") {
  // Written down once: another result breaks every resumed run.
  CHECK(ronde::detail::permutation(10, 0, 0) == Indices{8, 2, 3, 5, 1, 6, 9, 7, 0, 4});
  CHECK(ronde::detail::permutation(10, 0x123456789abcdefULL, 3) ==
        Indices{5, 0, 2, 4, 9, 7, 1, 3, 6, 8});
}

TEST_CASE("permutations are permutations, and differ by seed and epoch", "[n1]") {
  const Indices base = ronde::detail::permutation(1000, 1, 0);
  Indices sorted = base;
  std::sort(sorted.begin(), sorted.end());
  Indices identity(1000);
  std::iota(identity.begin(), identity.end(), std::size_t{0});
  CHECK(sorted == identity);
  CHECK(base != identity);
  CHECK(ronde::detail::permutation(1000, 2, 0) != base);
  CHECK(ronde::detail::permutation(1000, 1, 1) != base);
  CHECK(ronde::detail::permutation(1000, 1ULL << 32, 0) != base);
}

TEST_CASE("each element reaches each place about equally often", "[n1]") {
  constexpr std::size_t kSize = 6;
  constexpr std::size_t kRounds = 12000;
  std::vector<std::vector<double>> counts(kSize, std::vector<double>(kSize, 0.0));
  for (std::size_t epoch = 0; epoch < kRounds; ++epoch) {
    const Indices order = ronde::detail::permutation(kSize, 42, epoch);
    for (std::size_t place = 0; place < kSize; ++place) counts[place][order[place]] += 1;
  }
  const double mean = static_cast<double>(kRounds) / kSize;
  double chi_square = 0;
  for (const auto& row : counts) {
    for (const double count : row) chi_square += (count - mean) * (count - mean) / mean;
  }
  // 25 degrees of freedom: the 99.99 % point is 61.
  CHECK(chi_square < 61.0);
}

TEST_CASE("padded: every sample is dealt, ranks get equally many, the rest wraps around", "[n1]") {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    const auto dealt = deal(10, ranks, Remainder::Pad);
    const std::size_t each =
        (10 + static_cast<std::size_t>(ranks) - 1) / static_cast<std::size_t>(ranks);
    for (const Indices& rank : dealt) CHECK(rank.size() == each);
    const Indices order = interleave(dealt);
    const Indices permutation = ronde::detail::permutation(10, 7, 0);
    for (std::size_t k = 0; k < order.size(); ++k) CHECK(order[k] == permutation[k % 10]);
  }
}

TEST_CASE("dropped: ranks get equally many and no sample comes twice", "[n1]") {
  for (const int ranks : {1, 2, 3, 4, 7}) {
    const Indices order = interleave(deal(10, ranks, Remainder::Drop));
    const std::size_t each = 10 / static_cast<std::size_t>(ranks);
    CHECK(order.size() == each * static_cast<std::size_t>(ranks));
    CHECK(std::set<std::size_t>(order.begin(), order.end()).size() == order.size());
  }
}

TEST_CASE("more ranks than samples: padding gives each one, dropping is refused", "[n1]") {
  const auto dealt = deal(2, 5, Remainder::Pad);
  for (const Indices& rank : dealt) CHECK(rank.size() == 1);
  check_refused([] { deal(2, 5, Remainder::Drop); }, {"Remainder::Pad"});
}

TEST_CASE("unshuffled samples come in order", "[n1]") {
  DistributedSampler sampler(6, {.shuffle = false, .rank = 1, .size = 2});
  sampler.reset();
  CHECK(drain(sampler, 2) == Indices{1, 3, 5});
  CHECK_FALSE(sampler.next(2));
}

TEST_CASE("N ranks with batches of b see what one rank with batches of N*b sees", "[n1]") {
  DistributedSampler whole(24, {.seed = 3, .rank = 0, .size = 1});
  std::vector<DistributedSampler> parts;
  for (int r = 0; r < 4; ++r)
    parts.emplace_back(24, DistributedSamplerOptions{.seed = 3, .rank = r, .size = 4});
  whole.reset();
  for (auto& part : parts) part.reset();
  while (auto batch = whole.next(8)) {
    Indices union_of_ranks;
    for (auto& part : parts) {
      const auto own = part.next(2);
      REQUIRE(own);
      union_of_ranks.insert(union_of_ranks.end(), own->begin(), own->end());
    }
    std::sort(batch->begin(), batch->end());
    std::sort(union_of_ranks.begin(), union_of_ranks.end());
    CHECK(*batch == union_of_ranks);
  }
  for (auto& part : parts) CHECK_FALSE(part.next(2));
}

TEST_CASE("a resumed epoch goes on where it was, with any number of ranks", "[n1]") {
  const Indices order = ronde::detail::permutation(50, 9, 2);
  DistributedSampler before(50, {.seed = 9, .rank = 1, .size = 4});
  before.set_epoch(2);
  before.reset();
  before.next(3);
  CHECK(before.epoch() == 2);
  CHECK(before.position() == 12);
  for (const int ranks : {1, 3, 4, 5}) {
    std::vector<Indices> dealt;
    std::vector<std::pair<std::size_t, Indices>> by_position;
    for (int r = 0; r < ranks; ++r) {
      DistributedSampler after(50, {.seed = 9, .rank = r, .size = ranks});
      transfer(before, after);
      CHECK(after.epoch() == 2);
      CHECK(after.position() == 12);
      after.reset();
      dealt.push_back(drain(after, 4));
      CHECK(dealt.back().size() == dealt.front().size());
      // The next epoch is a whole one again.
      after.reset();
      CHECK(after.epoch() == 3);
      CHECK(drain(after, 4).size() == after.samples_per_rank());
    }
    // Rank k mod N has position k: the first position after 12 is not always rank 0's.
    const std::size_t n = static_cast<std::size_t>(ranks);
    std::vector<std::size_t> next(n, 0);
    for (std::size_t k = 12; k < 12 + n * dealt[0].size(); ++k) {
      CAPTURE(ranks, k);
      CHECK(dealt[k % n].at(next[k % n]++) == order[k % 50]);
    }
    CHECK(12 + n * dealt[0].size() >= 50);
    CHECK(12 + n * dealt[0].size() < 50 + n);
  }
}

TEST_CASE("a sampler saved at the end of an epoch resumes with the next one", "[n1]") {
  DistributedSampler before(10, {.rank = 0, .size = 3});
  before.reset();
  drain(before, 4);
  DistributedSampler after(10, {.rank = 2, .size = 4});
  transfer(before, after);
  after.reset();
  CHECK(after.epoch() == 1);
  CHECK(after.position() == 0);
  CHECK(drain(after, 4).size() == 3);
}

TEST_CASE("a position given by the caller replaces what a prefetching loader took", "[n1]") {
  DistributedSampler before(40, {.seed = 5, .rank = 0, .size = 2});
  before.reset();
  before.next(8);
  DistributedSampler after(40, {.seed = 5, .rank = 0, .size = 2});
  transfer(before, after, 4);
  after.reset();
  CHECK(after.position() == 4);
  CHECK(after.next(1)->front() == ronde::detail::permutation(40, 5, 0)[4]);
}

TEST_CASE("loading what was saved of another run is refused", "[n1]") {
  const DistributedSampler saved(10, {.seed = 1, .rank = 0, .size = 1});
  DistributedSampler other_seed(10, {.seed = 2, .rank = 0, .size = 1});
  check_refused([&] { transfer(saved, other_seed); }, {"seed"});
  DistributedSampler other_size(11, {.seed = 1, .rank = 0, .size = 1});
  check_refused([&] { transfer(saved, other_size); }, {"dataset size"});
  DistributedSampler other_order(10, {.seed = 1, .shuffle = false, .rank = 0, .size = 1});
  check_refused([&] { transfer(saved, other_order); }, {"shuffle"});
  torch::serialize::OutputArchive out;
  out.write("something", c10::IValue(1));
  torch::serialize::InputArchive in = reread(out);
  check_refused([&] { other_seed.load(in); }, {"not written by"});
}

TEST_CASE("an empty dataset and an impossible rank are refused", "[n1]") {
  check_refused([] { DistributedSampler(0, {.rank = 0, .size = 1}); }, {"empty"});
  check_refused([] { DistributedSampler(4, {.rank = 2, .size = 2}); }, {"rank 2"});
  check_refused([] { DistributedSampler(4, {.rank = 0, .size = 0}); }, {"size 0"});
}

TEST_CASE("a DataLoader's epochs advance by themselves, and set_epoch reaches its copy", "[n1]") {
  for (const std::size_t workers : {0U, 2U}) {
    DistributedSampler sampler(12, {.seed = 4, .rank = 1, .size = 2});
    auto loader = torch::data::make_data_loader(
        Numbers(12), sampler,
        torch::data::DataLoaderOptions().batch_size(2).workers(workers).enforce_ordering(true));
    const auto iterate = [&] {
      Indices seen;
      for (const auto& batch : *loader) seen.insert(seen.end(), batch.begin(), batch.end());
      return seen;
    };
    const auto of_epoch = [](std::size_t epoch) {
      const Indices order = ronde::detail::permutation(12, 4, epoch);
      Indices own;
      for (std::size_t k = 1; k < 12; k += 2) own.push_back(order[k]);
      return own;
    };
    CAPTURE(workers);
    CHECK(iterate() == of_epoch(0));
    CHECK(sampler.epoch() == 0);
    CHECK(iterate() == of_epoch(1));
    sampler.set_epoch(17);
    CHECK(sampler.epoch() == 17);
    CHECK(iterate() == of_epoch(17));
    CHECK(iterate() == of_epoch(18));
    sampler.set_epoch(3, 4);
    const Indices whole = of_epoch(3);
    CHECK(iterate() == Indices(whole.begin() + 2, whole.end()));
    CHECK(iterate() == of_epoch(4));
  }
}

TEST_CASE("rank and size come from Ronde when they are not given") {
  DistributedSampler sampler(100, {.shuffle = false});
  sampler.reset();
  const auto batch = sampler.next(2);
  REQUIRE(batch);
  CHECK(batch->at(0) == static_cast<std::size_t>(ronde::rank()));
  CHECK(batch->at(1) == static_cast<std::size_t>(ronde::rank() + ronde::size()));
}

}  // namespace ronde_test::sampler_test
