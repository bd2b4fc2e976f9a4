// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <sstream>

#include "tools/run/launcher/launcher.h"

namespace ronde::tool::launch {
namespace {

constexpr int kMostRanks = 16;

void print_rank(std::ostream& out, int number, const RankEnd& rank) {
  out << "  rank " << number << " on " << rank.host << ": " << rank.text();
  if (rank.steps > 0) out << "; " << rank.steps << " steps";
  if (rank.checkpoint >= 0) out << "; last checkpoint: step " << rank.checkpoint;
  if (rank.failed_rank >= 0) out << "; it names rank " << rank.failed_rank;
  out << '\n';
}

}  // namespace

std::string failure_screen(const JobEnd& end, Output& output) {
  std::ostringstream out;
  out.precision(3);
  for (const std::string& problem : end.problems) out << "ronde run: " << problem << '\n';
  if (end.ranks.empty()) return out.str();
  const double seconds = std::chrono::duration<double>(end.lasted).count();
  out << "\nronde run: the job has " << (end.signal != 0 ? "been ended" : "failed") << " after "
      << seconds << " s";
  const auto culprit = end.ranks.find(end.culprit);
  if (culprit != end.ranks.end() && end.signal == 0) {
    out << ", first rank " << end.culprit << " on " << culprit->second.host << ": "
        << culprit->second.text();
    if (culprit->second.is_well()) out << ", before the others were done";
  }
  out << '\n';
  int printed = 0;
  for (const auto& [number, rank] : end.ranks) {
    if (printed < kMostRanks) print_rank(out, number, rank);
    ++printed;
  }
  if (printed > kMostRanks) out << "  and " << printed - kMostRanks << " more ranks\n";
  if (culprit != end.ranks.end() && !output.last_lines(end.culprit).empty()) {
    out << "last lines of rank " << end.culprit << ":\n";
    for (const std::string& line : output.last_lines(end.culprit)) out << "  | " << line << '\n';
  }
  if (!output.folder().empty()) out << "logs: " << output.folder() << '\n';
  return out.str();
}

}  // namespace ronde::tool::launch
