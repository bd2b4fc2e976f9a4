// SPDX-License-Identifier: Apache-2.0
// Folders of checkpoints: what counts, what is told of damage, what stays.
#include "torch_ext/src/store/store.h"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <functional>
#include <latch>
#include <optional>
#include <thread>

#include "ronde/error.h"
#include "tests/checkpoint/parts.h"
#include "tests/support/processes/temporary_folder.h"

namespace {

/// Calls of fsync() in this process, and which of them fails as on a broken disk.
std::atomic<int> syncs = 0, failing_sync = 0;

}  // namespace

extern "C" int fsync(int file) {
  if (++syncs != failing_sync) return static_cast<int>(::syscall(SYS_fsync, file));
  errno = EIO;
  return -1;
}

namespace {

namespace fs = std::filesystem;
using namespace ronde::store;
using Catch::Contains;
using ronde::Error;
using ronde::test::make_checkpoint;
using ronde::test::read_text;
using ronde::test::TemporaryFolder;
using ronde::test::TestCheckpoint;
using ronde::test::write_bytes;

/// The text of what `action` throws, or empty.
std::string thrown_by(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

std::string error_of(const std::function<void()>& action) {
  std::string text = thrown_by(action);
  if (text.empty()) FAIL("nothing was thrown");
  return text;
}

void write(const Store& store, const TestCheckpoint& made, Copy copy = Copy::Own) {
  for (std::size_t part = 0; part < made.data.size(); ++part) {
    store.write_part(made.manifest.name, static_cast<std::int64_t>(part), copy, made.indices[part],
                     made.data[part]);
  }
}

TestCheckpoint save(const Store& store, std::int64_t sequence, int parts = 2) {
  TestCheckpoint made = make_checkpoint(sequence, 10 * sequence, parts);
  write(store, made);
  store.commit(made.manifest);
  return made;
}

/// The steps of the committed checkpoints, in ascending order.
std::vector<std::int64_t> steps(const Store& store) {
  std::vector<std::int64_t> all;
  for (const Sighting& sighting : store.scan()) {
    if (sighting.committed) all.push_back(sighting.name.step);
  }
  std::sort(all.begin(), all.end());
  return all;
}

Sighting only_sighting(const Store& store) {
  const std::vector<Sighting> all = store.scan();
  REQUIRE(all.size() == 1);
  return all[0];
}

fs::path file_of(const Store& store, const TestCheckpoint& made, const std::string& file) {
  return store.folder() / folder_name(made.manifest.name) / file;
}

/// The problem of its second part.
std::string problem(const Store& store, const TestCheckpoint& made) {
  return error_of([&] { store.read_part(only_sighting(store), made.manifest.parts[1]); });
}

TEST_CASE("a part that is changed, cut or gone is refused by its path") {
  const TemporaryFolder folder;
  const Store store(folder.path());
  const TestCheckpoint made = save(store, 1);
  const fs::path data = file_of(store, made, "part-1.pt");
  const fs::path index = file_of(store, made, "part-1.json");
  std::string changed = made.data[1];
  changed[500] ^= 1;
  write_bytes(data, changed);
  CHECK_THAT(problem(store, made),
             Contains("part-1.pt is damaged: the checksum of \"x\" is wrong"));
  write_bytes(data, made.data[1].substr(0, 999));
  CHECK_THAT(problem(store, made), Contains("part-1.pt has 999 bytes of 1000"));
  fs::remove(data);
  CHECK_THAT(problem(store, made), Contains("cannot read") && Contains("part-1.pt: No such file"));
  write_bytes(data, made.data[1]);
  write_bytes(index, made.indices[0]);
  CHECK_THAT(problem(store, made), Contains("part-1.json is damaged"));
  fs::remove(index);
  CHECK_THAT(problem(store, made), Contains("part 1 is not in"));
  write_bytes(index, made.indices[1]);
  CHECK(store.read_part(only_sighting(store), made.manifest.parts[1]).data == made.data[1]);
}

TEST_CASE("a copy serves where the part is damaged or missing") {
  const TemporaryFolder folder;
  const Store store(folder / "a" / "b");
  CHECK(store.scan().empty());
  store.prepare();
  const TestCheckpoint made = make_checkpoint(1, 10, 2);
  write(store, made);
  write(store, made, Copy::OfAnotherHost);
  store.commit(made.manifest);
  CHECK(only_sighting(store).parts.size() == 2);
  write_bytes(file_of(store, made, "part-1.pt"), "");
  CHECK(store.read_part(only_sighting(store), made.manifest.parts[1]).data == made.data[1]);
  fs::remove(file_of(store, made, "part-1.json"));
  CHECK(store.read_part(only_sighting(store), made.manifest.parts[1]).data == made.data[1]);
  write_bytes(file_of(store, made, "copy-1.pt"), "");
  CHECK_THAT(problem(store, made), Contains("copy-1.pt has 0 bytes of 1000"));
}

TEST_CASE("a checkpoint without a readable manifest says why") {
  const TemporaryFolder folder;
  const Store store(folder.path());
  const TestCheckpoint made = save(store, 1);
  const fs::path manifest = file_of(store, made, "manifest.json");
  const std::string text = read_text(manifest);
  write_bytes(manifest, text.substr(0, text.size() / 2));
  CHECK_THAT(only_sighting(store).problem, Contains("manifest.json is damaged: it is no JSON"));
  CHECK(only_sighting(store).manifest.empty());
  fs::remove(manifest);
  CHECK_THAT(only_sighting(store).problem, Contains("cannot read"));
  write_bytes(manifest, encode_manifest(make_checkpoint(2, 10, 2).manifest));
  CHECK_THAT(only_sighting(store).problem, Contains("another checkpoint's"));
  Manifest newer = made.manifest;
  newer.version = 9;
  write_bytes(manifest, encode_manifest(newer));
  CHECK_THAT(error_of([&] { store.scan(); }), Contains("manifest.json: it has version 9"));
}

TEST_CASE("the newest checkpoints stay, and nothing of older saves that ended half way") {
  const TemporaryFolder folder;
  const Store store(folder.path());
  write_bytes(folder / "notes.txt", "not a checkpoint");
  for (std::int64_t sequence = 1; sequence <= 4; ++sequence) save(store, sequence);
  write(store, make_checkpoint(5, 50, 1));
  write(store, make_checkpoint(7, 70, 1));
  const TestCheckpoint newest = save(store, 6);
  store.prune(0, newest.manifest.name);
  CHECK(steps(store).size() == 5);
  store.prune(2, newest.manifest.name);
  CHECK(steps(store) == std::vector<std::int64_t>{40, 60});
  CHECK(store.scan().size() == 3);  // with the one that is newer and in progress
  const TestCheckpoint later = save(store, 8);
  store.prune(2, later.manifest.name, {4, 8});
  CHECK(steps(store) == std::vector<std::int64_t>{40, 60, 80});
  store.prune(2, save(store, 9).manifest.name, {4, 8});
  CHECK(steps(store) == std::vector<std::int64_t>{80, 90});
  CHECK(fs::exists(folder / "notes.txt"));
}

TEST_CASE("ranks that share a folder commit and prune at once") {
  constexpr int kRanks = 4;
  const TemporaryFolder folder;
  for (std::int64_t sequence = 1; sequence <= 20; ++sequence) {
    const TestCheckpoint made = make_checkpoint(sequence, sequence, kRanks);
    std::latch written(kRanks);
    std::vector<std::string> problems(kRanks);
    {
      std::vector<std::jthread> ranks;
      for (std::size_t rank = 0; rank < kRanks; ++rank) {
        ranks.emplace_back([&, rank] {
          try {
            const Store store(folder.path());
            store.write_part(made.manifest.name, static_cast<std::int64_t>(rank), Copy::Own,
                             made.indices[rank], made.data[rank]);
            written.arrive_and_wait();
            store.commit(made.manifest);
            store.prune(1, made.manifest.name);
          } catch (const std::exception& error) {
            problems[rank] = error.what();
          }
        });
      }
    }
    for (const std::string& problem : problems) CHECK(problem == "");
  }
  const Store store(folder.path());
  CHECK(only_sighting(store).name.step == 20);
  CHECK(only_sighting(store).parts.size() == kRanks);
}

/// Runs in a process of its own, and returns how it ended.
int status_of_child(const std::function<void()>& action) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    action();
    ::_exit(0);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

TEST_CASE("a process that is killed in the middle of a save leaves the checkpoint before") {
  const TemporaryFolder folder;
  const Store store(folder.path());
  save(store, 1);
  // The system ends it in the write that exceeds the limit, after so many bytes of a file.
  for (const rlim_t limit : {0, 1, 500, 999}) {
    const int status = status_of_child([&] {
      const rlimit most = {limit, limit}, no_core = {0, 0};
      ::setrlimit(RLIMIT_CORE, &no_core);
      ::setrlimit(RLIMIT_FSIZE, &most);
      save(store, 2);
    });
    CHECK(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == SIGXFSZ);
    CHECK(steps(store) == std::vector<std::int64_t>{10});
    CHECK(store.scan().size() == 2);
  }
  const TestCheckpoint next = save(store, 3);
  store.prune(2, next.manifest.name);
  CHECK(steps(store) == std::vector<std::int64_t>{10, 30});
  CHECK(store.scan().size() == 2);
}

/// Returns the result of `action` on a thread with a tmpfs of this size at `place`, in a mount
/// namespace of its own; nothing if that cannot be mounted here.
std::optional<std::string> on_tmpfs(const fs::path& place, const char* size,
                                    const std::function<std::string()>& action) {
  std::optional<std::string> text;
  std::thread([&] {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", place.c_str(), "tmpfs", 0, size) != 0) {
      return;
    }
    text = action();
  }).join();
  if (!text) WARN("a tmpfs cannot be mounted here");
  return text;
}

TEST_CASE("a full disk is told, and the checkpoints before are intact") {
  const TemporaryFolder folder;
  const auto text = on_tmpfs(folder.path(), "size=64k", [&] {
    const Store store(folder.path());
    save(store, 1, 1);
    const std::string error = thrown_by([&] {
      store.write_part({2, 20, "0123abcd"}, 0, Copy::Own, "", std::string(100'000, 'x'));
    });
    return error + (steps(store) == std::vector<std::int64_t>{10} ? "" : " but the first is lost");
  });
  if (!text) return;
  CHECK_THAT(*text, Contains("cannot write") && Contains("part-0.pt: No space left on device") &&
                        Contains("Free some space") && !Contains("lost"));
}

TEST_CASE("a checkpoint counts only if all of it has reached the disk") {
  const TemporaryFolder folder;
  const Store store(folder.path());
  save(store, 1);
  syncs = 0;
  save(store, 2);
  // The folder of all twice, for a folder created and renamed in it; per part the data, the index
  // and their folder; the manifest and its folder.
  const int last = syncs;
  CHECK(last == 1 + 2 * 3 + 2 + 1);
  for (int failing = 1; failing <= last; ++failing) {
    CAPTURE(failing);
    syncs = 0;
    failing_sync = failing;
    const std::string text = error_of([&] { save(store, 2 + failing); });
    failing_sync = 0;
    CHECK_THAT(text, Contains("cannot make durable") && Contains("Input/output error"));
    // At the end it is whole, but may be gone after a loss of power.
    CHECK(steps(store).back() == (failing < last ? 20 : 10 * (2 + last)));
  }
  store.prune(1, save(store, 3 + last).manifest.name);
  CHECK(only_sighting(store).name.step == 10 * (3 + last));
}

TEST_CASE("what cannot be removed does not keep the checkpoints after it") {
  const TemporaryFolder folder;
  const fs::path busy = folder / "partial-000000-step-0-0123abcd/busy";
  fs::create_directories(busy);
  const auto text = on_tmpfs(busy, nullptr, [&] {
    const Store store(folder.path());
    save(store, 1);
    save(store, 2);
    const Name newest = save(store, 3).manifest.name;
    const std::string error = thrown_by([&] { store.prune(1, newest); });
    return error + (steps(store) == std::vector<std::int64_t>{30} ? "" : " and others are left");
  });
  if (!text) return;
  CHECK_THAT(*text, Contains("cannot remove the older checkpoint") && Contains("step-0") &&
                        !Contains("others"));
}

TEST_CASE("two jobs in one folder are told, and remove nothing of each other") {
  const TemporaryFolder folder;
  const Store store(folder.path());
  save(store, 1);
  const Name other{2, 20, "89abcdef"};
  store.check_alone(other, 2);  // the run before
  save(store, 2);
  CHECK_THAT(error_of([&] { store.check_alone(other, 2); }),
             Contains("another job, or Checkpoint, saves into") && Contains("000002-step-20-"));
  save(store, 3);
  store.prune(1, other, {}, 3);
  CHECK(steps(store) == std::vector<std::int64_t>{20, 30});
}

TEST_CASE("a folder that cannot be used is told with its path") {
  const TemporaryFolder folder;
  write_bytes(folder / "file", "");
  CHECK_THAT(error_of([&] { Store(folder / "file" / "x").prepare(); }),
             Contains("cannot make the folder") && Contains("file/x: Not a directory"));
  fs::create_directory(folder / "closed");
  fs::permissions(folder / "closed", fs::perms::owner_read | fs::perms::owner_exec);
  constexpr uid_t kNobody = 65534;
  const bool is_root = ::geteuid() == 0;
  const int status = status_of_child([&] {
    if (is_root && ::setuid(kNobody) != 0) ::_exit(1);
    try {
      Store(folder / "closed" / "x").prepare();
    } catch (const Error& error) {
      const std::string text = error.what();
      if (text.find("Permission denied. Give this user the permission") != std::string::npos) {
        ::_exit(7);
      }
    }
  });
  CHECK(WEXITSTATUS(status) == 7);
}

}  // namespace
