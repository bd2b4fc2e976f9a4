// SPDX-License-Identifier: Apache-2.0
// ronde::Checkpoint: what comes back, with the same and with other ranks.
#include <csignal>
#include <numeric>

#include "tests/support/processes/beside.h"
#include "tests/torch/checkpoint/training.h"
#include "torch_ext/src/store/manifest.h"

namespace ronde_test::checkpoint_test {

using namespace ronde_test::checkpoints;

TEST_CASE("a resumed run ends with the same bits, random numbers included") {
  for (const bool sharded : {true, false}) {
    for (const bool asynchronous : {true, false}) {
      CAPTURE(sharded, asynchronous);
      const Options options = {.checkpoint = {.sharded = sharded, .asynchronous = asynchronous}};
      const SharedFolder folder;
      Training whole(folder.path(), options);
      CHECK_FALSE(whole.resume());
      whole.run(20, {3, 9});
      const std::string expected = whole.state();
      whole.checkpoint.wait();
      Options other = options;
      other.seed = 2;
      Training resumed(folder.path(), other);
      REQUIRE(resumed.resume() == 9);
      resumed.run(20);
      CHECK(resumed.state() == expected);
    }
  }
}

TEST_CASE("the ranks divide what they share, and each tensor is written once") {
  const SharedFolder folder;
  save_run(folder.path(), {2});
  std::map<std::string, int> written;
  for (const fs::path& file : files_in(folder.path(), ".json")) {
    if (file.filename() == "manifest.json") continue;
    for (const auto& entry : ronde::store::decode_index(ronde::test::read_text(file), 1 << 30)) {
      ++written[entry.name];
      CHECK((entry.rank >= 0) == (entry.name == "own" || entry.name.starts_with("random/")));
    }
  }
  const int size = ronde::size();
  CHECK(written.at("own") == size);
  CHECK(written.at("random/cpu") == size);
  for (const char* name : {"net/0.weight", "net/1.running_mean", "adam", "adam/0.3.max_exp_avg_sq",
                           "warmup", "decay", "sampler", "loss", "mask", "note", "scaler"}) {
    CAPTURE(name);
    CHECK(written[name] == 1);
  }
}

TEST_CASE("LibTorch opens a part as a dictionary of tensors", "[n1][n2]") {
  const SharedFolder folder;
  save_run(folder.path(), {2});
  int found = 0;
  for (const fs::path& file : files_in(folder.path(), ".pt")) {
    const std::string bytes = ronde::test::read_text(file);
    const auto entries = torch::pickle_load({bytes.begin(), bytes.end()}).toGenericDict();
    if (!entries.contains("mask")) continue;
    ++found;
    CHECK(torch::equal(entries.at("mask").toTensor(), torch::arange(kSamples)));
  }
  CHECK(found == 1);
}

namespace {

/// Trains as far as `until`, and returns the samples that all ranks have seen, sorted.
std::vector<std::int64_t> go_on(const fs::path& folder, std::vector<int> ranks, std::size_t batch,
                                int until) {
  const ronde::ProcessSet set = ronde::add_process_set(ranks);
  std::vector<std::int64_t> seen;
  if (ronde::rank_in(set)) {
    // The state that each rank has by itself does not follow.
    Training training(folder, {.seed = until, .set = set, .batch = batch});
    ronde::Checkpoint shared(folder, {.process_set = set});
    shared.add("net", training.net).add("adam", training.adam).add("sampler", training.sampler);
    training.steps = static_cast<int>(shared.resume().value_or(0));
    training.run(until);
    shared.save(until);
    shared.wait();
    seen = training.seen;
  }
  const at::Tensor all = ronde::allgather(at::tensor(seen, at::kLong));
  ronde::remove_process_set(set);
  std::vector<std::int64_t> sorted(all.const_data_ptr<std::int64_t>(),
                                   all.const_data_ptr<std::int64_t>() + all.numel());
  std::sort(sorted.begin(), sorted.end());
  return sorted;
}

}  // namespace

TEST_CASE("four ranks, then two, then three see each sample once in an epoch", "[n4]") {
  const SharedFolder folder;
  std::vector<std::int64_t> all = go_on(folder.path(), {0, 1, 2, 3}, 3, 1);
  const std::vector<std::int64_t> by_two = go_on(folder.path(), {0, 1}, 6, 2);
  const std::vector<std::int64_t> by_three = go_on(folder.path(), {2, 0, 1}, 4, 4);
  all.insert(all.end(), by_two.begin(), by_two.end());
  all.insert(all.end(), by_three.begin(), by_three.end());
  std::sort(all.begin(), all.end());
  std::vector<std::int64_t> each(static_cast<std::size_t>(kSamples));
  std::iota(each.begin(), each.end(), 0);
  CHECK(all == each);
}

TEST_CASE("a rank that gets a stop signal stops all ranks at the same step") {
  const SharedFolder folder;
  ronde::Checkpoint checkpoint(folder.path(), {.stop_signals = {SIGUSR1}});
  for (int step = 0; step < 3; ++step) CHECK_FALSE(checkpoint.should_stop());
  // Twice, as where a cluster signals a launcher and its ranks.
  for (int i = 0; i < 2 && ronde::rank() == ronde::size() - 1; ++i) ::raise(SIGUSR1);
  int stopped_at = 0;
  while (!checkpoint.should_stop()) ++stopped_at;
  CHECK(same_on_all_ranks(std::to_string(stopped_at)));
  CHECK(stopped_at <= 1);
  CHECK(checkpoint.should_stop());
}

TEST_CASE("a batch is divided among the ranks and passes") {
  const std::int64_t ranks = ronde::size();
  for (const std::int64_t largest : {1, 3, 8, 100}) {
    const ronde::BatchShare share = ronde::share_batch(24 * ranks, largest);
    CHECK(share.batch <= largest);
    CHECK(share.batch * share.passes == 24);
    CHECK(share.total == 24 * ranks);
    CHECK(share.rate_factor == 1);
  }
  CHECK(ronde::share_batch(24 * ranks, 7).batch == 6);
  if (ranks > 1) {
    const ronde::BatchShare share = ronde::share_batch(24 * ranks + 1, 8);
    CHECK(share.total == 24 * ranks);
    const auto even = static_cast<double>(share.total);
    CHECK(share.rate_factor == Approx(even / (even + 1)));
    check_refused([&] { ronde::share_batch(ranks - 1, 8); }, {"at least one sample a rank"});
  }
  check_refused([&] { ronde::share_batch(8 * ranks, 0); }, {"at most 0"});
}

}  // namespace ronde_test::checkpoint_test
