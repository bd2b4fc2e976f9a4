// SPDX-License-Identifier: Apache-2.0
#include <csignal>
#include <cstdlib>

#include "tests/support/processes/file_limit.h"
#include "tests/torch/checkpoint/training.h"
#include "torch_ext/src/store/manifest.h"

namespace ronde_test::checkpoint_errors_test {
namespace {

using namespace ronde_test::checkpoints;

std::ptrdiff_t count_folders(const fs::path& folder) {
  ronde::barrier();
  const auto folders = std::ranges::count_if(fs::directory_iterator(folder),
                                             [](const auto& file) { return file.is_directory(); });
  ronde::barrier();
  return folders;
}

TEST_CASE("a damaged or torn newest checkpoint gives way to the one before, on all ranks") {
  const std::vector<std::function<void(const fs::path&)>> damages = {
      damage_newest,
      [](const fs::path& folder) { fs::remove(files_in(newest_in(folder), ".pt").back()); },
      [](const fs::path& folder) { fs::remove(newest_in(folder) / "part-0.json"); },
      [](const fs::path& folder) { fs::remove(newest_in(folder) / "manifest.json"); },
      [](const fs::path& folder) { fs::resize_file(newest_in(folder) / "part-0.pt", 100); }};
  for (const auto& damage : damages) {
    const SharedFolder folder;
    save_run(folder.path(), {2, 4});
    on_rank_0([&] { damage(folder.path()); });
    Training resumed(folder.path(), {.seed = 2});
    CHECK(resumed.resume() == 2);
    CHECK(resumed.note == "step 2");
    // The run continues without regard to the damaged one.
    resumed.save_at(5);
    Training next(folder.path(), {.seed = 3});
    CHECK(next.resume() == 5);
    // The damaged one does not count among those that are kept, and goes with those before it.
    CHECK(count_folders(folder.path()) == 3);
    next.save_at(6);
    CHECK(count_folders(folder.path()) == 2);
  }
}

TEST_CASE("where no checkpoint is whole, or one is of a newer Ronde, all ranks say so") {
  const SharedFolder folder;
  save_run(folder.path(), {2, 4});
  const fs::path newest = newest_in(folder.path());
  on_rank_0([&] {
    fs::remove(newest / "part-0.pt");
    fs::remove(files_in(folder.path(), "part-0.json").front());
  });
  Training other(folder.path(), {.seed = 2});
  const std::string before = ronde::save_bytes(other.net);
  check_refused([&] { other.checkpoint.resume(); },
                {"no checkpoint in " + folder.path().string(), "000001-step-2",
                 "no rank sees its part 0 of " + std::to_string(ronde::size()), "000002-step-4",
                 "part-0.pt: No such file"});
  on_rank_0([&] {
    ronde::store::Manifest manifest =
        ronde::store::decode_manifest(ronde::test::read_text(newest / "manifest.json"));
    manifest.version = 7;
    ronde::test::write_bytes(newest / "manifest.json", ronde::store::encode_manifest(manifest));
  });
  check_refused([&] { other.checkpoint.resume(); },
                {"rank 0: ", "manifest.json: it has version 7 of the format"});
  CHECK(ronde::save_bytes(other.net) == before);
}

TEST_CASE("a checkpoint of another model is refused by name, and changes nothing") {
  const SharedFolder folder;
  save_run(folder.path(), {2});
  torch::nn::Sequential net{torch::nn::Linear(4, 9), torch::nn::BatchNorm1d(9), torch::nn::ReLU(),
                            torch::nn::Dropout(0.4),
                            torch::nn::Linear(torch::nn::LinearOptions(9, 1).bias(false))};
  const std::string before = ronde::save_bytes(net);
  std::int64_t own = 0;
  at::Tensor extra = torch::ones({2});
  torch::nn::Linear head(2, 3);
  ronde::Checkpoint checkpoint(folder.path());
  checkpoint.add("net", net).add_local("own", own).add("extra", extra).add("head", head);
  check_refused(
      [&] { checkpoint.resume(); },
      {"ronde::Checkpoint::resume: checkpoint 000001-step-2-", "of another program or model",
       "\"net/0.weight\" is Float [8, 4] in the checkpoint and Float [9, 4] here",
       "\"extra\" (Float [2]) is not in the checkpoint", "more"});
  ronde::Checkpoint second(folder.path());
  Training same(folder.path(), {.seed = 2});
  second.add("net", same.net).add_local("own", own).add("adam", same.adam);
  second.add("warmup", same.note).add("decay", same.decay).add("sampler", same.sampler);
  second.add("loss", same.loss).add("mask", same.note).add("note", same.note);
  check_refused(
      [&] { second.resume(); },
      {"\"scaler\" (ronde::GradScaler) is not here",
       "\"mask\" is Long [" + std::to_string(kSamples) + "] in the checkpoint and bytes here",
       "\"warmup\" is ronde::WarmupLR in the checkpoint and bytes here"});
  CHECK(ronde::save_bytes(net) == before);
}

TEST_CASE("what is each rank's own fits the same number of ranks only", "[n2][n4]") {
  const SharedFolder folder;
  save_run(folder.path(), {2});
  const ProcessSet set = ronde::add_process_set({0});
  if (ronde::rank() == 0) {
    Training alone(folder.path(), {.seed = 2, .checkpoint = {.process_set = set}});
    const std::string text = check_refused([&] { alone.checkpoint.resume(); },
                                           {"\"own\" is each rank's own, and was saved by " +
                                            std::to_string(ronde::size()) + " ranks, here are 1"});
    CHECK_FALSE(contains(text, "is not here"));
  }
  ronde::remove_process_set(set);
}

/// Makes way for the files once a save has come to this object.
struct Obstacle {
  fs::path path;
  bool gives_way = false;
  void save(torch::serialize::OutputArchive& /*archive*/) const {
    if (gives_way) fs::remove(path);
  }
  void load(torch::serialize::InputArchive& /*archive*/) {}
};

TEST_CASE("a save that fails on one rank is told on all by the next call, which saves even so") {
  const SharedFolder folder;
  Obstacle obstacle{folder.path() / "here"};
  Training training(obstacle.path, {.checkpoint = {.keep = 1}});
  training.checkpoint.add("obstacle", obstacle);
  training.save_at(1);
  on_rank_0([&] {
    fs::remove_all(obstacle.path);
    ronde::test::write_bytes(obstacle.path, "");
  });
  training.run(2, {2});
  obstacle.gives_way = true;
  training.run(3);
  check_refused(
      [&] { training.checkpoint.save(3); },
      {"ronde::Checkpoint::save: impossible on some ranks:\n  rank 0: step 2 was not saved: ",
       "cannot make the folder " + obstacle.path.string(), "Not a directory"});
  training.checkpoint.wait();
  CHECK(files_in(obstacle.path, "manifest.json").size() == 1);
  Training resumed(obstacle.path, {.seed = 2});
  obstacle.gives_way = false;
  resumed.checkpoint.add("obstacle", obstacle);
  CHECK(resumed.resume() == 3);
}

/// A file that not even the superuser can remove in this scope, if the file system supports that.
class Frozen {
 public:
  explicit Frozen(const fs::path& path) : path_(path), is_frozen_(change("+i")) {}
  ~Frozen() { change("-i"); }

  bool is_frozen() const { return is_frozen_; }

 private:
  bool change(const std::string& flag) const {
    return std::system(("chattr " + flag + " '" + path_.string() + "' 2>/dev/null").c_str()) == 0;
  }

  const fs::path path_;
  const bool is_frozen_;
};

TEST_CASE("an older checkpoint that cannot be removed costs no save", "[n1]") {
  const SharedFolder folder;
  Training training(folder.path(), {.checkpoint = {.keep = 1}});
  training.save_at(1);
  {
    const Frozen older(newest_in(folder.path()));
    training.run(2, {2});
    CHECK_NOTHROW(training.checkpoint.wait());
    if (!older.is_frozen()) WARN("no file can be frozen here: nothing was tested");
    CHECK(files_in(folder.path(), "manifest.json").size() == (older.is_frozen() ? 2 : 1));
  }
  training.save_at(3);
  CHECK(files_in(folder.path(), "manifest.json").size() == 1);
}

TEST_CASE("a rank without the memory for others' parts says so on all", "[n2]") {
  constexpr std::int64_t kBytes = 64 << 20;
  const SharedFolder folder;
  at::Tensor large = torch::full({ronde::rank() == 1 ? kBytes : 1}, 7, torch::kByte);
  ronde::Checkpoint checkpoint(folder.path(), {.sharded = false});
  checkpoint.add_local("large", large);
  const auto check_little = [&](const std::function<void()>& action, const std::string& text) {
    std::optional<ronde::test::MemoryLimit> little;
    if (ronde::rank() == 0) little.emplace(kBytes / 2);
    check_refused(action, {text});
  };
  check_little(
      [&] {
        checkpoint.save(1);
        checkpoint.wait();
      },
      "rank 0: step 1 was not saved: ");
  checkpoint.save(1);
  checkpoint.wait();
  check_little([&] { checkpoint.resume(); }, "rank 0: no memory for ");
  large.zero_();
  CHECK(checkpoint.resume() == 1);
  CHECK(large.eq(7).all().item<bool>());
}

TEST_CASE("checkpoints of another run are not overwritten by one that did not resume") {
  const SharedFolder folder;
  save_run(folder.path(), {2});
  Training other(folder.path(), {});
  check_refused([&] { other.checkpoint.save(1); },
                {"has checkpoints of another run (000001-step-2-", "Call resume() first"});
  {
    double number = 0;
    ronde::Checkpoint unlike(folder.path());
    unlike.add("number", number);
    check_refused([&] { unlike.resume(); }, {"\"number\"", "is not in the checkpoint"});
    check_refused([&] { unlike.save(1); }, {"has checkpoints of another run"});
  }
  CHECK(other.resume() == 2);
  other.checkpoint.save(3);
}

TEST_CASE("two jobs that save into one folder are told, and lose nothing") {
  const SharedFolder folder;
  double number = 1;
  ronde::Checkpoint first(folder.path()), second(folder.path());
  first.add("number", number);
  second.add("number", number);
  first.save(1);
  first.wait();
  second.save(2);
  check_refused(
      [&] { second.wait(); },
      {"step 2 was not saved: another job, or Checkpoint, saves into " + folder.path().string(),
       "it has made 000001-step-1-", "Give each a folder of its own"});
  first.save(3);
  first.wait();
  ronde::barrier();
  CHECK(files_in(folder.path(), "manifest.json").size() == 2);
}

/// Takes nothing, not even what it has written itself.
struct Stubborn {
  void save(torch::serialize::OutputArchive& archive) const {
    archive.write("of", c10::IValue(number));
  }
  void load(torch::serialize::InputArchive& archive) {
    c10::IValue of;
    archive.read("of", of);
    throw std::runtime_error("no " + std::to_string(of.toInt()));
  }
  std::int64_t number = 0;
};

TEST_CASE("an object that can be neither loaded nor set back says both") {
  const SharedFolder folder;
  Stubborn saved{1}, present{2};
  ronde::Checkpoint(folder.path()).add("stubborn", saved).save(2);
  ronde::Checkpoint checkpoint(folder.path());
  checkpoint.add("stubborn", present);
  check_refused([&] { checkpoint.resume(); },
                {"\"stubborn\" cannot be loaded: no 1. It cannot be set back: no 2"});
}

TEST_CASE("where an object cannot be loaded, those before it are as they were") {
  const SharedFolder folder;
  torch::nn::Linear net(1, 1);
  torch::optim::SGD sgd(net->parameters(), 1.0), other(net->parameters(), 1.0),
      third(net->parameters(), 1.0);
  const auto rate = [](const torch::optim::SGD& of) {
    return of.param_groups()[0].options().get_lr();
  };
  const ronde::WarmupOptions options{.steps = 7, .scale = 3};
  ronde::DistributedSampler sampler(48, {}), grown(49, {});
  {
    ronde::WarmupLR warmup(sgd, options);
    warmup.step();
    warmup.step();
    ronde::Checkpoint(folder.path()).add("warmup", warmup).add("sampler", sampler).save(2);
  }
  ronde::WarmupLR warmup(other, options), fresh(third, options);
  const double before = rate(other);
  ronde::Checkpoint checkpoint(folder.path());
  checkpoint.add("warmup", warmup).add("sampler", grown);
  check_refused([&] { checkpoint.resume(); }, {"\"sampler\" cannot be loaded"});
  CHECK(rate(other) == before);
  warmup.step();
  fresh.step();
  CHECK(rate(other) == rate(third));
}

TEST_CASE("the folder is the same one where the program goes to another", "[n1]") {
  const SharedFolder folder;
  const fs::path place = fs::current_path();
  fs::current_path(folder.path());
  double number = 1;
  ronde::Checkpoint checkpoint("here");
  checkpoint.add("number", number);
  fs::current_path(place);
  checkpoint.save(1);
  checkpoint.wait();
  CHECK(files_in(folder.path() / "here", "manifest.json").size() == 1);
}

TEST_CASE("ranks with other objects or options are told", "[n2][n4]") {
  const SharedFolder folder;
  at::Tensor tensor = torch::zeros({2 + (ronde::rank() == 1 ? 1 : 0)});
  ronde::Checkpoint checkpoint(folder.path());
  checkpoint.add("x", tensor);
  check_refused([&] { checkpoint.save(1); },
                {"rank 1 has \"x: Float [3]\" where rank 0 has \"x: Float [2]\"", "add_local()"});
  check_refused([&] { ronde::Checkpoint other(folder.path(), {.keep = 2 + ronde::rank()}); },
                {"rank 1 has \"keep 3\" where rank 0 has \"keep 2\""});
  on_rank_0([&] { ronde::test::write_bytes(folder.path() / "file", ""); });
  const bool spoilt = ronde::rank() == 1;
  check_refused([&] { ronde::Checkpoint other(folder.path() / (spoilt ? "file/x" : "y")); },
                {"rank 1: cannot make the folder", "file/x: Not a directory"});
}

TEST_CASE("what each rank had by itself is not taken for what is equal, nor the reverse") {
  const SharedFolder folder;
  at::Tensor own = torch::full({2}, ronde::rank()), equal = torch::ones({2});
  ronde::Checkpoint(folder.path()).add_local("own", own).add("equal", equal).save(1);
  ronde::Checkpoint other(folder.path());
  other.add("own", own).add_local("equal", equal);
  check_refused([&] { other.resume(); },
                {"\"own\" was saved by add_local()", "\"equal\" was saved by add()"});
}

TEST_CASE("names and options that make no sense are refused", "[n1]") {
  const SharedFolder folder;
  ronde::Checkpoint checkpoint(folder.path());
  check_refused([&] { checkpoint.save(-1); }, {"save(-1): steps are numbered from 0"});
  double number = 0;
  checkpoint.add("x", number);
  for (const char* name : {"x", "", "a/b", "random"}) {
    check_refused([&] { checkpoint.add(name, number); }, {"give each object a name of its own"});
  }
  at::Tensor sparse = torch::eye(2).to_sparse();
  checkpoint.add("sparse", sparse);
  check_refused([&] { checkpoint.save(1); }, {"\"sparse\" is a sparse, quantized or meta tensor"});
  check_refused([&] { ronde::Checkpoint(folder.path(), {.keep = -1}); }, {"keep is -1"});
  check_refused([&] { ronde::Checkpoint(folder.path(), {.replicate = 2}); }, {"replicate is 2"});
  const ronde::CheckpointOptions deadly = {.stop_signals = {SIGUSR2, SIGKILL}};
  check_refused([&] { ronde::Checkpoint(folder.path(), deadly); },
                {"stop signal 9 cannot be caught"});
  struct sigaction action = {};
  CHECK(::sigaction(SIGUSR2, nullptr, &action) == 0);
  CHECK(action.sa_handler == SIG_DFL);
  check_refused([&] { ronde::Checkpoint(""); }, {"the path of the folder is empty"});
}

}  // namespace
}  // namespace ronde_test::checkpoint_errors_test
