// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "oracle.h"
#include "tests/support/command.h"

namespace kmeans::testing {

using Words = std::vector<std::string>;

/// Runs `kmeans options` on so many ranks under the MPI launcher, and ends it after a minute.
ronde::test::CommandResult run(int ranks, const Words& options,
                               const std::map<std::string, std::string>& environment = {});

/// Two ranks with options of their own. A rank that fails does not end the other.
ronde::test::CommandResult run_pair(const Words& first, const Words& second);

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

  std::vector<std::int32_t> assignments() const;
  std::vector<std::int64_t> start_rows() const { return report["start_rows"]; }
};

/// Runs with an --output of its own below `folder` and requires success.
Result cluster(const std::filesystem::path& folder, int ranks, const Words& options);

/// Requires that one to four ranks give the same, bit for bit, but for the times in the report.
/// Returns what one gave.
Result cluster_on_one_to_four(const std::filesystem::path& folder, const Words& options);

/// The numbers of a CSV text without labels.
Rows parse_rows(const std::string& text);

std::string to_csv(const Rows& rows);

void write_file(const std::filesystem::path& path, const std::string& bytes);

}  // namespace kmeans::testing
