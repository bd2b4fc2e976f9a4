// SPDX-License-Identifier: Apache-2.0
// What a child of fork() finds in place of memory that its parent shares.
#include "core/src/base/shared_mapping.h"

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <cerrno>
#include <functional>
#include <optional>
#include <span>

namespace ronde {
namespace {

const auto kPage = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));

UniqueFd new_memory(std::size_t bytes = 3 * kPage) {
  UniqueFd file(::memfd_create("shared_mapping_test", MFD_CLOEXEC));
  REQUIRE(file);
  REQUIRE(::ftruncate(file.get(), static_cast<off_t>(bytes)) == 0);
  return file;
}

/// All three pages; a child of fork() has the second.
SharedMapping map(const UniqueFd& file) {
  return {UniqueFd(::dup(file.get())), 3 * kPage, {.offset = kPage, .bytes = kPage}};
}

void fill(std::span<std::byte> bytes, int value) {
  std::ranges::fill(bytes, static_cast<std::byte>(value));
}

bool is_filled(std::span<const std::byte> bytes, int value) {
  return std::ranges::count(bytes, static_cast<std::byte>(value)) == std::ssize(bytes);
}

/// The kernel can read it for this process.
bool is_reachable(std::span<const std::byte> bytes) {
  const UniqueFd file = new_memory();
  return ::write(file.get(), bytes.data(), 1) == 1 || errno != EFAULT;
}

/// The number of the check of `child`, from 1, that fails in a child of fork(); 0: none.
int failed_in_child(const std::function<int()>& child) {
  constexpr unsigned kPatienceInS = 30;
  const pid_t process = ::fork();
  REQUIRE(process >= 0);
  if (process == 0) {
    ::alarm(kPatienceInS);
    ::_exit(child());
  }
  int status = 0;
  REQUIRE(::waitpid(process, &status, 0) == process);
  INFO("status " << status);
  REQUIRE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

TEST_CASE("a child of fork writes its own copy of its part, as its child does, and no other") {
  const SharedMapping mapping = map(new_memory());
  const std::span<std::byte> bytes = mapping.bytes();
  const auto own = bytes.subspan(kPage, kPage);
  fill(bytes, 1);
  CHECK(failed_in_child([&] {
          if (!is_filled(own, 1)) return 1;
          fill(own, 2);
          if (is_reachable(bytes.first(kPage))) return 2;
          if (is_reachable(bytes.subspan(2 * kPage))) return 3;
          const int failed = failed_in_child([&] {
            if (!is_filled(own, 2)) return 1;
            fill(own, 3);
            return 0;
          });
          if (failed != 0) return 4;
          return is_filled(own, 2) ? 0 : 5;
        }) == 0);
  CHECK(is_filled(bytes, 1));
}

TEST_CASE("a child of fork gives up mappings of its parent, and shares memory of its own") {
  const UniqueFd file = new_memory();
  std::optional<SharedMapping> first(map(file)), ended(map(file));
  SharedMapping second(UniqueFd(::dup(file.get())), 3 * kPage);
  SharedMapping moved = std::move(second);
  ended.reset();
  fill(moved.bytes(), 1);
  CHECK(failed_in_child([&] {
          if (is_reachable(moved.bytes())) return 1;
          first.reset();
          moved = map(file);
          fill(moved.bytes().first(kPage), 4);
          return failed_in_child([&] { return is_reachable(moved.bytes()) ? 1 : 0; }) + 1;
        }) == 1);
  CHECK(is_filled(moved.bytes().first(kPage), 4));
  CHECK(is_filled(moved.bytes().subspan(kPage), 1));
  CHECK(is_filled(first->bytes().first(kPage), 4));
}

TEST_CASE("memory of which a child of fork has a part may be larger than the machine's") {
  constexpr std::size_t kBytes = std::size_t{1} << 38;
  const SharedMapping mapping(new_memory(kBytes), kBytes, {.offset = kPage, .bytes = kBytes / 2});
  mapping.bytes()[kPage] = std::byte{1};
  CHECK(failed_in_child([&] {
          if (mapping.bytes()[kPage] != std::byte{1}) return 1;
          mapping.bytes()[kBytes / 2] = std::byte{2};
          return 0;
        }) == 0);
  CHECK(mapping.bytes()[kBytes / 2] == std::byte{0});
}

}  // namespace
}  // namespace ronde
