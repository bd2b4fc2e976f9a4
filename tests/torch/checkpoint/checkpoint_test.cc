// SPDX-License-Identifier: Apache-2.0
// ronde::Checkpoint with the same and with other ranks, tensors of every layout and dtype, and that
// a resume changes all or nothing.
#include <csignal>
#include <numeric>

#include "tests/torch/checkpoint/training.h"
#include "tests/torch/layouts.h"
#include "tests/torch/state/objects.h"
#include "torch_ext/src/store/manifest.h"

namespace ronde_test::checkpoint_test {
namespace {

using namespace ronde_test::checkpoints;

TEST_CASE("a resumed run ends with the same bits, random numbers included") {
  const bool sharded = GENERATE(true, false);
  const bool asynchronous = GENERATE(true, false);
  CAPTURE(sharded, asynchronous);
  Options options = {.checkpoint = {.sharded = sharded, .asynchronous = asynchronous}};
  const SharedFolder folder;
  Training whole(folder.path(), options);
  CHECK_FALSE(whole.resume());
  whole.run(20, {3, 9});
  const std::string expected = whole.state();
  whole.checkpoint.wait();
  options.seed = 2;
  Training resumed(folder.path(), options);
  REQUIRE(resumed.resume() == 9);
  resumed.run(20);
  CHECK(resumed.state() == expected);
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

/// What all ranks have written or read in spans of this name.
std::uint64_t bytes_in_spans(const std::string& name) {
  const auto bytes = static_cast<std::int64_t>(ronde::figures().spans[name].bytes);
  const at::Tensor sum =
      ronde::allreduce(at::tensor(bytes, at::kLong), {.op = ronde::ReduceOp::Sum});
  return static_cast<std::uint64_t>(sum.item<std::int64_t>());
}

TEST_CASE("figures have the bytes of a checkpoint's files, as the folder has them") {
  const SharedFolder folder;
  const std::uint64_t written = bytes_in_spans("write checkpoint file");
  save_run(folder.path(), {2});
  ronde::barrier();
  std::uintmax_t on_disk = 0, manifests = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder.path())) {
    if (!entry.is_regular_file()) continue;
    on_disk += entry.file_size();
    if (entry.path().filename() == "manifest.json") manifests += entry.file_size();
  }
  REQUIRE(on_disk > manifests);
  CHECK(bytes_in_spans("write checkpoint file") - written == on_disk);
  const std::uint64_t read = bytes_in_spans("read checkpoint file");
  Training resumed(folder.path(), {});
  REQUIRE(resumed.resume() == 2);
  CHECK(bytes_in_spans("read checkpoint file") - read >= on_disk);
}

/// Trains as far as `until`, and returns the samples that all ranks have seen.
std::vector<std::int64_t> go_on(const fs::path& folder, std::vector<int> ranks, std::size_t batch,
                                int until) {
  const ProcessSet set = ronde::add_process_set(ranks);
  std::vector<std::int64_t> seen;
  if (ronde::rank_in(set)) {
    // The state that each rank has by itself does not follow.
    Training training(folder, {.seed = until, .batch = batch, .checkpoint = {.process_set = set}});
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
  return {all.const_data_ptr<std::int64_t>(), all.const_data_ptr<std::int64_t>() + all.numel()};
}

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
  // A scheduler may signal both a launcher and its ranks.
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

/// Saves a number and the object as step 1.
template <typename T>
void save(const fs::path& folder, T& object) {
  std::int64_t number = 1;
  ronde::Checkpoint(folder, {.overwrite = true})
      .add("number", number)
      .add("object", object)
      .save(1);
}

/// Checks that `object` cannot be resumed from `saved`, and that what is resumed before it stays.
template <typename T>
void check_not_resumed(T& saved, T& object, const std::vector<std::string>& parts) {
  const SharedFolder folder;
  save(folder.path(), saved);
  std::int64_t number = 7;
  ronde::Checkpoint checkpoint(folder.path());
  checkpoint.add("number", number).add("object", object);
  check_refused([&] { checkpoint.resume(); }, parts);
  CHECK(number == 7);
}

TEST_CASE("a checkpoint keeps complex, float8, unsigned, conjugated and expanded tensors") {
  const bool shared_before = GENERATE(true, false);
  const SharedFolder folder;
  auto saved = heads_of(4, shared_before), net = heads_of(1);
  const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
  torch::optim::SGD sgd(saved->parameters(), options), other(net->parameters(), options);
  at::view_as_real(saved->parameters()[0]).sum().backward();
  sgd.step();
  ronde::Checkpoint(folder.path()).add("net", saved).add("sgd", sgd).save(1);
  ronde::Checkpoint checkpoint(folder.path());
  checkpoint.add("net", net).add("sgd", other);
  REQUIRE(checkpoint.resume() == 1);
  CHECK(bytes_of(*net) == bytes_of(*saved));
  CHECK(net->named_buffers()["mask"].stride(0) == 0);
  const auto& state = static_cast<torch::optim::SGDParamState&>(*other.state().begin()->second);
  const at::Tensor ones = at::full({2, 3}, c10::complex<float>(1, 1), at::kComplexFloat);
  CHECK(same_bits(state.momentum_buffer(), ones));
}

TEST_CASE("values that an expanded buffer cannot hold are refused, and change nothing") {
  for (const std::string name : {"mask", "window"}) {
    auto saved = heads_of(2, /*shares=*/false), net = heads_of(5);
    saved->named_buffers()[name].view(-1)[1] = 77;
    check_not_resumed(
        saved, net,
        {"ronde::Checkpoint::resume: impossible on some ranks", "\"object\" cannot be loaded",
         name + " (f32 [", "share memory", "contiguous()"});
    CHECK(bytes_of(*net) == bytes_of(*heads_of(5)));
  }
}

TEST_CASE("tensor variables are resumed where they are, or replaced if they cannot hold it") {
  const SharedFolder folder;
  at::Tensor saved = torch::arange(3, at::kFloat).expand({2, 3});
  const at::Tensor base = torch::zeros({3, 2}, torch::requires_grad());
  at::Tensor leaf = torch::zeros({2, 3}, torch::requires_grad()), view = base.t(),
             computed = leaf * 2, rows = torch::zeros({3}).expand({2, 3}),
             columns = torch::zeros({2, 1}).expand({2, 3}), inferred;
  {
    const c10::InferenceMode inference;
    save(folder.path(), saved);
    inferred = torch::zeros({2, 3});
  }
  save(folder.path(), saved);
  for (at::Tensor* const tensor : {&leaf, &view, &computed, &rows, &columns, &inferred}) {
    const void* const memory = tensor->const_data_ptr();
    std::int64_t number = 0;
    ronde::Checkpoint checkpoint(folder.path());
    checkpoint.add("number", number).add("object", *tensor);
    CHECK(checkpoint.resume() == 1);
    CHECK(torch::equal(*tensor, saved));
    if (tensor != &columns) CHECK(tensor->const_data_ptr() == memory);
  }
  CHECK(leaf.is_leaf());
  CHECK(inferred.is_inference());
  CHECK(rows.stride(0) == 0);
  CHECK(columns.is_contiguous());
}

/// Without a default constructor.
struct Fixed : Note {
  explicit Fixed(const std::string& of) : Note{of, at::zeros({1})} {}
};

TEST_CASE("an object that throws half way on one rank leaves all objects alone", "[n2][n4]") {
  const std::string fails = "unreadable by a number";
  Fixed saved(fails), object("mine");
  const auto random = [] {
    return bytes_of(at::globalContext().defaultGenerator(at::kCPU).get_state());
  };
  const std::string before = random();
  check_not_resumed(saved, object, {"rank 1: \"object\" cannot be loaded: an exception that does"});
  CHECK(object.text == "mine");
  CHECK(random() == before);
  if (ronde::rank() == 0) object.text = fails;
  check_refused([&] { ronde::broadcast_object(object); }, {"rank 1: "});
  CHECK(object.text == (ronde::rank() == 0 ? fails : "mine"));
}

}  // namespace
}  // namespace ronde_test::checkpoint_test
