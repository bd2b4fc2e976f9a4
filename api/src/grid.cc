// SPDX-License-Identifier: Apache-2.0
#include "ronde/grid.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "ronde/error.h"
#include "ronde/runtime.h"

// Note [Making a grid]
//
// The rows along an axis partition the ranks, and every rank makes its rows in the order of the
// axes: so where a rank waits for the others of its row, they arrive, whatever their rows along
// earlier axes. A row that cannot be made, or removed, must not keep its ranks from their rows
// along the later axes, where others wait for them: they continue, and all ranks get the error at
// the end.
namespace ronde {
namespace {

constexpr std::size_t kFewestDimensions = 2;
constexpr std::size_t kMostDimensions = 4;

/// Gathers the words of every rank, in rank order. All ranks call it.
std::vector<std::vector<std::int64_t>> gather_words(Runtime& runtime, const std::string& name,
                                                    std::vector<std::int64_t> words) {
  words.insert(words.begin(), static_cast<std::int64_t>(words.size()));
  std::vector<std::int64_t> all;
  Request request;
  request.kind = Collective::Allgather;
  request.name = name;
  request.dtype = DataType::I64;
  request.shape = {static_cast<std::int64_t>(words.size())};
  request.input = words.data();
  request.allocate_output = [&all](const std::vector<std::int64_t>& shape) {
    all.resize(static_cast<std::size_t>(shape.at(0)));
    return static_cast<void*>(all.data());
  };
  runtime.run(std::move(request));
  std::vector<std::vector<std::int64_t>> by_rank;
  for (auto at = all.begin(); at != all.end();) {
    const auto begin = at + 1;
    at = begin + *at;
    by_rank.emplace_back(begin, at);
  }
  return by_rank;
}

/// "2 x 4"
template <typename Number>
std::string times(const std::vector<Number>& sizes) {
  std::string text;
  for (const Number size : sizes) {
    text += (text.empty() ? "" : " x ") + std::to_string(size);
  }
  return text.empty() ? "nothing" : text;
}

/// Returns why `sizes` do not fit that many ranks; empty if they do.
std::string objection(const std::vector<int>& sizes, int ranks) {
  if (sizes.size() < kFewestDimensions || sizes.size() > kMostDimensions) {
    return "a grid has 2 to 4 dimensions, not " + std::to_string(sizes.size());
  }
  const auto wrong = std::find_if(sizes.begin(), sizes.end(), [](int size) { return size < 1; });
  if (wrong != sizes.end()) return "a dimension of " + std::to_string(*wrong) + " has no ranks";
  std::int64_t product = 1;
  for (const int size : sizes) {
    product *= size;
    if (product > ranks) break;
  }
  if (product == ranks) return {};
  return "the product of the dimensions must be the number of ranks, which is " +
         std::to_string(ranks);
}

void check_dimensions(Runtime& runtime, const std::string& what, const std::vector<int>& sizes) {
  const auto given = gather_words(runtime, what, {sizes.begin(), sizes.end()});
  for (std::size_t rank = 1; rank < given.size(); ++rank) {
    if (given[rank] == given[0]) continue;
    throw UsageError(what + ": rank 0 gave the dimensions " + times(given[0]) + ", but rank " +
                     std::to_string(rank) + " " + times(given[rank]) +
                     "; every rank must give the same");
  }
  const std::string error = objection(sizes, runtime.topology().size);
  if (!error.empty()) throw UsageError(what + " of " + times(sizes) + ": " + error);
}

}  // namespace

Grid::Grid(Runtime& runtime, std::vector<int> dimensions, const std::string& tag)
    : sizes_(std::move(dimensions)),
      remove_set_([&runtime](ProcessSet set) { runtime.remove_process_set(set); }) {
  const std::string what = "ronde::Grid" + (tag.empty() ? "" : " '" + tag + "'");
  check_dimensions(runtime, what, sizes_);
  coordinates_.resize(sizes_.size());
  sets_.resize(sizes_.size());
  int rest = runtime.topology().rank;
  for (std::size_t axis = sizes_.size(); axis-- > 0;) {
    coordinates_[axis] = rest % sizes_[axis];
    rest /= sizes_[axis];
  }
  const std::string error = make_sets(runtime, what + " of " + times(sizes_));
  const auto failed = gather_words(runtime, what + " is made", {error.empty() ? 0 : 1});
  const auto first = std::find_if(failed.begin(), failed.end(),
                                  [](const auto& words) { return words.at(0) != 0; });
  if (first == failed.end()) return;
  const std::string leftover = remove_sets();
  throw UsageError(what + " of " + times(sizes_) + ": rank " +
                   std::to_string(first - failed.begin()) + " could not make its process sets" +
                   (error.empty() ? "" : "; here: " + error) +
                   (leftover.empty() ? "" : "; and to remove them again: " + leftover));
}

/// Returns the first error.
std::string Grid::make_sets(Runtime& runtime, const std::string& what) {
  std::string first_error;
  for (std::size_t axis = 0; axis < sizes_.size(); ++axis) {
    try {
      sets_[axis] =
          runtime.create_process_set(row_along(axis), what + " axis " + std::to_string(axis));
    } catch (const UsageError& error) {
      if (first_error.empty()) first_error = error.what();
    }
  }
  return first_error;
}

/// Returns the first error.
std::string Grid::remove_sets() {
  std::string first_error;
  for (ProcessSet& set : sets_) {
    if (set == kGlobalSet) continue;
    try {
      remove_set_(set);
      set = kGlobalSet;
    } catch (const UsageError& error) {
      if (first_error.empty()) first_error = error.what();
    }
  }
  return first_error;
}

void Grid::remove() {
  const std::string error = remove_sets();
  if (!error.empty()) throw UsageError("ronde::Grid of " + times(sizes_) + ": " + error);
}

std::vector<int> Grid::row_along(std::size_t axis) const {
  std::vector<int> row;
  std::vector<int> place = coordinates_;
  for (place[axis] = 0; place[axis] < sizes_[axis]; ++place[axis]) row.push_back(rank_at(place));
  return row;
}

std::size_t Grid::checked(int axis) const {
  if (axis >= 0 && axis < dimensions()) return static_cast<std::size_t>(axis);
  throw UsageError("ronde::Grid of " + times(sizes_) + " has no axis " + std::to_string(axis) +
                   ": there are axes 0 to " + std::to_string(dimensions() - 1));
}

ProcessSet Grid::set(int axis) const {
  const ProcessSet set = sets_[checked(axis)];
  if (set != kGlobalSet) return set;
  throw UsageError("ronde::Grid of " + times(sizes_) + ": the process set of axis " +
                   std::to_string(axis) + " has been removed");
}

int Grid::coordinate(int axis) const {
  return coordinates_[checked(axis)];
}

int Grid::size(int axis) const {
  return sizes_[checked(axis)];
}

int Grid::rank_at(const std::vector<int>& coordinates) const {
  bool is_inside = coordinates.size() == sizes_.size();
  int rank = 0;
  for (std::size_t axis = 0; is_inside && axis < sizes_.size(); ++axis) {
    is_inside = coordinates[axis] >= 0 && coordinates[axis] < sizes_[axis];
    rank = rank * sizes_[axis] + coordinates[axis];
  }
  if (is_inside) return rank;
  std::string text;
  for (const int coordinate : coordinates) {
    text += (text.empty() ? "" : ", ") + std::to_string(coordinate);
  }
  throw UsageError("ronde::Grid of " + times(sizes_) + ": there is no rank at (" + text + ")");
}

}  // namespace ronde
