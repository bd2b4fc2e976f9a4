// SPDX-License-Identifier: Apache-2.0
#include "tools/bench/memcpy.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <optional>

#include "tools/bench/ring.h"
#include "tools/bench/turns.h"

namespace ronde::tool {
namespace {

constexpr std::array kColumns{
    Column{"bytes", "bytes"},
    Column{"p50 us", "p50_us", 2},
    Column{"p99 us", "p99_us", 2},
    Column{"min us", "min_us", 2},
    Column{"GB/s a rank", "algbw_gbs", 3},
    Column{"GB/s all", "busbw_gbs", 3},
    Column{"p50 us alone", "alone_p50_us", 2},
    Column{"GB/s alone", "alone_algbw_gbs", 3},
};

Json row_of(const Session& session, std::size_t bytes, const Samples& together,
            const Samples& alone) {
  const auto speed = [bytes](double microseconds) {
    return static_cast<double>(bytes) / (microseconds * 1e3);
  };
  const double p50 = median(together);
  return {{"benchmark", "memcpy"},
          {"ranks", session.topology().size},
          {"rotate_bytes", session.rotate_bytes()},
          {"iterations", together.size()},
          {"bytes", bytes},
          {"p50_us", p50},
          {"p99_us", percentile(together, 0.99)},
          {"min_us", percentile(together, 0.0)},
          {"algbw_gbs", speed(p50)},
          {"busbw_gbs", speed(p50) * session.topology().size},
          {"alone_p50_us", median(alone)},
          {"alone_algbw_gbs", speed(median(alone))}};
}

}  // namespace

void run_memcpy(Session& session) {
  const BenchOptions& options = session.options();
  Report report = session.report(kColumns);
  report.say("memcpy, " + session.description());
  report.print_titles();
  std::optional<Ring> from;
  std::optional<Ring> to;
  session.alike([&] {
    const std::size_t room = std::max(options.max_bytes, session.rotate_bytes() / 2);
    from.emplace(room);
    to.emplace(room);
  });
  for (std::size_t bytes = options.min_bytes; bytes <= options.max_bytes; bytes *= 2) {
    from->split(bytes, session.rotate_bytes() / 2);
    to->split(bytes, session.rotate_bytes() / 2);
    const auto copy = [&] { std::memcpy(to->next(), from->next(), bytes); };
    const auto copy_alone = [&] {
      if (session.topology().rank == 0) copy();
    };
    const auto times = take_turns(session.peers(), {{copy}, {copy_alone}}, options.warmup,
                                  iterations_for(options, bytes));
    report.add(row_of(session, bytes, times[0], times[1]));
    if (bytes > options.max_bytes / 2) break;
  }
  session.write_json(report);
}

}  // namespace ronde::tool
