// SPDX-License-Identifier: Apache-2.0
#include "tools/prof/hang/hang.h"

#include <algorithm>
#include <utility>

#include "ronde/error.h"

namespace ronde::prof {
namespace {

constexpr int kDumpLayout = 1;
constexpr double kUsInS = 1e6;

DumpedOperation parse_operation(const Json& json, double at_us) {
  DumpedOperation operation;
  operation.key = {json.value("set", 0), json.value("kind", "operation"), json.value("name", "")};
  operation.ranks = json.value("ranks", std::vector<int>());
  operation.peer = rank_from_json(json.value("peer", Json(-1)));
  operation.state = json.at("state").get<std::string>();
  operation.age_s = (at_us - json.value("submitted_us", at_us)) / kUsInS;
  operation.done_s = (at_us - json.value("completed_us", at_us)) / kUsInS;
  return operation;
}

Dump parse_dump(const fs::path& path) {
  const Json json = parse_json(read_file(path), path);
  if (!json.is_object() || !json.contains("ronde_dump")) {
    throw UsageError(path.string() + " is no flight recorder's dump: it has no member ronde_dump");
  }
  Dump dump;
  check_layout(json.at("ronde_dump"), kDumpLayout, path);
  dump.rank = json.value("rank", rank_in_name(path));
  dump.ranks = rank_from_json(json.at("ranks"));
  dump.host = json.value("host", "");
  dump.pid = json.value("pid", 0);
  dump.reason = json.value("reason", "");
  dump.text = json.value("text", "");
  const double at_us = json.value("at_us", 0.0);
  for (const Json& thread : json.value("threads", Json::array())) {
    dump.threads.push_back({thread.value("doing", ""), thread.value("what", ""),
                            (at_us - thread.value("since_us", at_us)) / kUsInS});
  }
  for (const Json& operation : json.value("operations", Json::array())) {
    dump.operations.push_back(parse_operation(operation, at_us));
  }
  return dump;
}

}  // namespace

Dumps read_dumps(const fs::path& folder) {
  Dumps all;
  std::string last_error;
  for (const fs::path& path : json_files(folder, "rank<r>.json of RONDE_DUMP")) {
    const int rank = rank_in_name(path);
    if (rank < 0) continue;
    Dump dump;
    try {
      dump = parse_dump(path);
    } catch (const UsageError& error) {
      all.unreadable[rank] = last_error = error.what();
      continue;
    } catch (const std::exception& error) {
      all.unreadable[rank] = last_error =
          path.string() + " is no dump that this ronde can read: " + error.what();
      continue;
    }
    if (all.ranks != 0 && dump.ranks != all.ranks) {
      throw UsageError(path.string() + " is of " + std::to_string(dump.ranks) +
                       " ranks, and the others of " + std::to_string(all.ranks) +
                       ": remove the dumps of an earlier run");
    }
    all.ranks = dump.ranks;
    all.by_rank.emplace(rank, std::move(dump));
  }
  if (all.by_rank.empty()) {
    throw UsageError(last_error.empty()
                         ? "folder " + folder.string() + " has no rank<r>.json of RONDE_DUMP"
                         : last_error);
  }
  return all;
}

std::string operation_text(const OperationKey& key) {
  const auto& [set, kind, name] = key;
  return kind + " '" + name + "'" + (set == 0 ? "" : " of set " + std::to_string(set));
}

}  // namespace ronde::prof
