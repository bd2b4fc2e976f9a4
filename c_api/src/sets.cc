// SPDX-License-Identifier: Apache-2.0
// Numbers of ranks, and process sets.
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include "c_api/src/arguments.h"
#include "ronde/ronde.h"
#include "ronde/ronde_c.h"
#include "ronde/run.h"

namespace ronde::c {
namespace {

template <typename Get>
int give(const char* function, int* result, const Get& get) noexcept {
  return guarded(function, [&] {
    expect(result != nullptr, "the pointer for the result is NULL");
    *result = static_cast<int>(get());
  });
}

}  // namespace

std::vector<int> list_of(const int* ranks, int count) {
  expect(ranks != nullptr || count == 0, "ranks is NULL");
  expect(count >= 0, "count is negative");
  return {ranks, ranks + count};
}

}  // namespace ronde::c

using namespace ronde::c;

int ronde_rank(uint32_t set, int* rank) {
  return give("ronde_rank", rank, [&] {
    const std::optional<int> own = ronde::rank_in(set_of(set));
    if (own) return *own;
    throw Failure(RONDE_E_NOT_A_MEMBER,
                  ronde::rank_text(set_of(set)) + " is not in process set " + std::to_string(set));
  });
}

int ronde_failed_rank(uint32_t set, int* rank) {
  return guarded("ronde_failed_rank", [&] {
    expect(rank != nullptr, "rank is NULL");
    const std::exception_ptr failure = ronde::failure(set_of(set));
    *rank = -1;
    if (!failure) return;
    try {
      std::rethrow_exception(failure);
    } catch (const ronde::GroupError& error) {
      *rank = error.failed_rank();
      throw;
    }
  });
}

int ronde_size(uint32_t set, int* size) {
  return give("ronde_size", size, [&] { return ronde::ranks_of(set_of(set)).size(); });
}

int ronde_local_rank(int* rank) {
  return give("ronde_local_rank", rank, ronde::local_rank);
}

int ronde_local_size(int* size) {
  return give("ronde_local_size", size, ronde::local_size);
}

int ronde_cross_rank(int* rank) {
  return give("ronde_cross_rank", rank, ronde::cross_rank);
}

int ronde_cross_size(int* size) {
  return give("ronde_cross_size", size, ronde::cross_size);
}

int ronde_is_homogeneous(int* homogeneous) {
  return give("ronde_is_homogeneous", homogeneous, [] { return ronde::is_homogeneous(); });
}

int ronde_process_set_add(const int* ranks, int count, uint32_t* set) {
  return give_set("ronde_process_set_add", set,
                  [&] { return ronde::add_process_set(list_of(ranks, count)); });
}

int ronde_process_set_create(const int* ranks, int count, const char* tag, uint32_t* set) {
  return give_set("ronde_process_set_create", set, [&] {
    return ronde::create_process_set(list_of(ranks, count), tag == nullptr ? "" : tag);
  });
}

int ronde_process_set_remove(uint32_t set) {
  return guarded("ronde_process_set_remove", [&] {
    expect_no_callback();
    ronde::remove_process_set(set_of(set));
  });
}

int ronde_process_set_ids(uint32_t* ids, int* count) {
  return guarded("ronde_process_set_ids", [&] {
    expect(count != nullptr, "count is NULL");
    give_list<ronde::ProcessSet, std::uint32_t>(ronde::process_sets(), ids, count,
                                                [](ronde::ProcessSet each) { return each.id; });
  });
}

int ronde_process_set_ranks(uint32_t set, int* ranks, int* count) {
  return guarded("ronde_process_set_ranks", [&] {
    expect(count != nullptr, "count is NULL");
    give_list<int, int>(ronde::ranks_of(set_of(set)), ranks, count, [](int rank) { return rank; });
  });
}

int ronde_process_set_included(uint32_t set, int* included) {
  return give("ronde_process_set_included", included,
              [&] { return ronde::rank_in(set_of(set)).has_value(); });
}
