// SPDX-License-Identifier: Apache-2.0
// Hosts that lose their disk, ranks that die while they save, and what goes on meanwhile.
#include <sched.h>
#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <cstdio>
#include <thread>

#include "tests/support/processes/file_ranks.h"
#include "tests/support/processes/launcher_rank.h"
#include "tests/torch/checkpoint/training.h"

namespace ronde_test::checkpoint_hosts_test {
namespace {

using namespace ronde_test::checkpoints;

/// Ranks 0 and 1 on one host, 2 and 3 on another, each with a disk of its own.
void on_two_hosts(const std::function<void(const fs::path& disk)>& action) {
  setenv("RONDE_HOST_ID", ronde::test::launched_rank() < 2 ? "a" : "b", 1);
  use_ronde();
  const ronde::test::TemporaryFolder disk;
  action(disk.path());
  ronde::barrier();
}

TEST_CASE("with replicate the parts of a lost host are on the other one", "[n4][own]") {
  on_two_hosts([](const fs::path& disk) {
    save_run(disk, {2, 3}, {.checkpoint = {.replicate = 1}});
    CHECK(files_in(disk, ".pt").size() == 4);
    ronde::barrier();
    const std::set<int> lost = {2, 3};
    if (lost.contains(ronde::rank())) {
      for (const auto& file : fs::directory_iterator(disk)) fs::remove_all(file.path());
    }
    Training resumed(disk, {.seed = 2});
    CHECK(resumed.resume() == 3);
    CHECK(resumed.note == "step 3");
  });
}

TEST_CASE("rank 0's parts, too, have a copy on the other host", "[n4][own]") {
  on_two_hosts([](const fs::path& disk) {
    save_run(disk, {2}, {.checkpoint = {.sharded = false, .replicate = 1}});
    const std::size_t files = files_in(disk, ".pt").size();
    CHECK(files == (ronde::rank() % 2 == 0 ? 4U : 0U));
    ronde::barrier();
    if (ronde::rank() == 0) fs::remove_all(newest_in(disk));
    Training resumed(disk, {.seed = 2});
    CHECK(resumed.resume() == 2);
  });
}

TEST_CASE("what resumed from a checkpoint that one host had not committed keeps it", "[n4][own]") {
  on_two_hosts([](const fs::path& disk) {
    save_run(disk, {2, 3});
    if (ronde::rank() > 1) {
      const fs::path newest = newest_in(disk);
      fs::remove(newest / "manifest.json");
      fs::rename(newest, disk / ("partial-" + newest.filename().string()));
    }
    ronde::barrier();
    Training resumed(disk, {.seed = 2});
    CHECK(resumed.resume() == 3);
    resumed.save_at(4);
    const std::vector<fs::path> manifests = files_in(disk, "manifest.json");
    REQUIRE(manifests.size() == 2);
    CHECK(contains(manifests[0].string(), "-step-3-"));
  });
}

TEST_CASE("what one host could not commit, it does with the next save", "[n4][own]") {
  on_two_hosts([](const fs::path& disk) {
    Training training(disk, {});
    training.save_at(2);
    fs::path obstacle = newest_in(disk);
    std::string name = obstacle.filename().string();
    obstacle.replace_filename(name.replace(0, 14, "000002-step-3-").c_str());
    training.run(3);
    ronde::barrier();
    if (ronde::rank() == 3) fs::create_directories(obstacle / "in the way");
    training.checkpoint.save(3);
    check_refused([&] { training.checkpoint.wait(); }, {"step 3 was not saved: cannot rename"});
    if (ronde::rank() == 3) fs::remove_all(obstacle);
    training.save_at(4);
    const std::vector<fs::path> manifests = files_in(disk, "manifest.json");
    REQUIRE(manifests.size() == 2);
    CHECK(contains(manifests[0].string(), "-step-3-"));
  });
}

constexpr int kGroupError = 9;
constexpr int kVictimStep = 5;

std::string dies_once_there_is;

/// Kills itself in the middle of writing a file, then or as soon as `file` exists.
void die_in_the_next_write(const std::string& file = "/") {
  dies_once_there_is = file;
  ::signal(SIGXFSZ, [](int) {
    while (::access(dies_once_there_is.c_str(), F_OK) != 0) ::sched_yield();
    ::kill(::getpid(), SIGKILL);
  });
  const rlimit most = {1000, 1000};
  ::setrlimit(RLIMIT_FSIZE, &most);
}

TEST_CASE("helper: a rank that trains and saves", "[.][own]") {
  using ronde::test::started_with;
  const ronde::KeyValueStart start = ronde::test::start_by_files();
  ronde::init({.key_value = start});
  try {
    Training training(started_with("TRAIN_FOLDER"), {});
    std::printf("resumed %d\n", static_cast<int>(training.resume().value_or(0)));
    const std::string victim = started_with("TRAIN_VICTIM");
    for (int step = training.steps + 1; step <= 8; ++step) {
      if (step == kVictimStep) training.checkpoint.wait();
      if (step == kVictimStep && victim == std::to_string(start.rank)) die_in_the_next_write();
      training.run(step, {step});
    }
    training.checkpoint.wait();
  } catch (const ronde::GroupError& error) {
    std::fprintf(stderr, "group %d\n", error.failed_rank());
    std::fflush(nullptr);
    std::_Exit(kGroupError);
  }
  ronde::shutdown();
}

TEST_CASE("a rank that is killed in the middle of a save costs that save alone", "[n1]") {
  const ronde::test::TemporaryFolder folder;
  const auto launch = [&](const std::string& victim) {
    return ronde::test::run_file_ranks(3, "helper: a rank that trains and saves",
                                       {{"TRAIN_FOLDER", folder.path().string()},
                                        {"TRAIN_VICTIM", victim},
                                        {"OMP_NUM_THREADS", "1"}});
  };
  const auto killed = launch("1");
  CHECK(killed[1].exit_code == -1);
  for (const std::size_t survivor : {0, 2}) {
    CAPTURE(killed[survivor].out, killed[survivor].err);
    CHECK(killed[survivor].exit_code == kGroupError);
    CHECK(contains(killed[survivor].err, "group 1"));
  }
  for (const auto& rank : launch("none")) {
    CAPTURE(rank.out, rank.err);
    CHECK(rank.exit_code == 0);
    CHECK(contains(rank.out, "resumed " + std::to_string(kVictimStep - 1)));
  }
  CHECK(files_in(folder.path(), "manifest.json").size() == 2);
  for (const auto& file : fs::directory_iterator(folder.path())) {
    CHECK_FALSE(file.path().filename().string().starts_with("partial-"));
  }
}

std::atomic<bool> write_is_held = false, write_may_end = false;

TEST_CASE("training goes on while a save is held up in the middle of a write", "[n1]") {
  const SharedFolder folder;
  Training training(folder.path(), {});
  rlimit limit = {};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
  // Runs on the thread whose write exceeds the limit; the write fails afterwards.
  const auto previous = ::signal(SIGXFSZ, [](int) {
    write_is_held = true;
    while (!write_may_end) ::sched_yield();
  });
  const rlimit small = {100, limit.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  training.run(3, {3});
  while (!write_is_held) std::this_thread::yield();
  training.run(6);
  ::setrlimit(RLIMIT_FSIZE, &limit);
  ::signal(SIGXFSZ, previous);
  write_may_end = true;
  check_refused([&] { training.checkpoint.wait(); },
                {"step 3 was not saved: cannot write", "File too large"});
  training.save_at(7);
  CHECK(files_in(folder.path(), "manifest.json").size() == 1);
}

TEST_CASE("helper: a rank that shuts down while it saves", "[.][own]") {
  using ronde::test::started_with;
  ronde::init({.key_value = ronde::test::start_by_files()});
  const fs::path folder = started_with("TRAIN_FOLDER");
  at::Tensor large = torch::ones({1 << 20});
  ronde::Checkpoint checkpoint(folder);
  checkpoint.add_local("large", large);
  const std::int64_t step = checkpoint.resume().value_or(0);
  std::printf("resumed %d\n", static_cast<int>(step));
  if (started_with("TRAIN_SPOIL") == "yes") {
    on_rank_0([&] {
      fs::remove_all(folder);
      ronde::test::write_bytes(folder, "");
    });
  }
  const std::string saved = folder.string() + ".saved";
  if (started_with("TRAIN_SPOIL") == "killed" && ronde::rank() == 1) die_in_the_next_write(saved);
  checkpoint.save(step + 1);
  if (ronde::rank() == 0) ronde::test::write_bytes(saved, "");
  ronde::shutdown();
}

std::vector<ronde::test::CommandResult> save_and_shut_down(const fs::path& folder,
                                                           const std::string& spoiled) {
  return ronde::test::run_file_ranks(
      2, "helper: a rank that shuts down while it saves",
      {{"TRAIN_FOLDER", folder.string()}, {"TRAIN_SPOIL", spoiled}, {"OMP_NUM_THREADS", "1"}});
}

TEST_CASE("shutdown waits for the save in progress, and throws if it fails", "[n1]") {
  const ronde::test::TemporaryFolder folder;
  for (const std::string step : {"0", "1"}) {
    for (const auto& rank : save_and_shut_down(folder / "checkpoints", "no")) {
      CAPTURE(rank.out, rank.err);
      CHECK(rank.exit_code == 0);
      CHECK(contains(rank.out, "resumed " + step));
    }
  }
  fs::resize_file(files_in(newest_in(folder.path()), ".pt").front(), 100);
  const auto failed = save_and_shut_down(folder / "checkpoints", "yes");
  CAPTURE(failed[0].out, failed[0].err);
  for (const char* const part : {"000002-step-2-", "is not used"}) {
    CHECK(contains(failed[0].err, part));
  }
  for (const char* const part : {"resumed 1", "step 2 was not saved"}) {
    CHECK(contains(failed[0].out, part));
  }
  CHECK(failed[0].exit_code != 0);
}

TEST_CASE("shutdown throws the death of a rank that only the save in progress has met", "[n1]") {
  const ronde::test::TemporaryFolder folder;
  const auto ranks = save_and_shut_down(folder / "checkpoints", "killed");
  CAPTURE(ranks[0].out, ranks[0].err);
  CHECK(ranks[1].exit_code == -1);
  CHECK(ranks[0].exit_code != 0);
  CHECK(contains(ranks[0].err, "the save of step 1 was cut off: rank 1 was lost"));
  CHECK(contains(ranks[0].out, "rank 1 was lost"));
}

}  // namespace
}  // namespace ronde_test::checkpoint_hosts_test
