// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "oracle.h"
#include "tests/support/launch.h"

namespace kmeans::testing {

using ronde::test::Words;

/// The files that a run has left, as they are.
struct Files {
  std::string centroids;
  std::string assignments;
  std::string picture;  ///< empty if there is none

  friend bool operator==(const Files&, const Files&) = default;
};

struct Result {
  Files files;
  nlohmann::json report;
  std::string text;  ///< what the program printed

  Rows centroids() const;
  std::vector<std::int32_t> assignments() const;
  std::vector<std::int64_t> start_rows() const { return report["start_rows"]; }
};

/// Runs with an --output of its own below `folder` and requires success.
Result cluster(const std::filesystem::path& folder, int ranks, const Words& options);

/// Requires that one to four ranks give the same, bit for bit, but for the times in the report.
/// Returns what one gave.
Result cluster_on_one_to_four(const std::filesystem::path& folder, const Words& options);

/// Checks that the run has ended where the plain one did, within rounding.
void check_same(const Result& result, const Expected& expected);

std::string to_csv(const Rows& rows);

}  // namespace kmeans::testing
