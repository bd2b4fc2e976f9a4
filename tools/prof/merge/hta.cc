// SPDX-License-Identifier: Apache-2.0
// Holistic Trace Analysis (0.5.0) fails without streams of a device: backward becomes one, the
// operations another. It finds kernels of communication by the pattern "^nccl.*Kernel", steps by
// "ProfilerStep#", and the step of a kernel by the launch of the same correlation.
#include <algorithm>
#include <cstdint>
#include <ostream>

#include "observe/report/text.h"
#include "ronde/error.h"
#include "tools/prof/merge/merge.h"

namespace ronde::prof {
namespace {

constexpr const char* kLabel = "synthetic: made by ronde prof merge --hta, no such device";
constexpr int kBackwardStream = 1;
constexpr int kOperationStream = 2;

/// "allreduce" as "all_reduce" and "AllReduce", as PyTorch's and NCCL's names go.
std::pair<std::string, std::string> names_of(const std::string& kind) {
  if (kind == "allreduce") return {"all_reduce", "AllReduce"};
  if (kind == "allgather") return {"all_gather", "AllGather"};
  if (kind == "reducescatter") return {"reduce_scatter", "ReduceScatter"};
  if (kind == "alltoall") return {"all_to_all", "SendRecv"};
  if (kind == "broadcast") return {"broadcast", "Broadcast"};
  if (kind == "reduce") return {"reduce", "Reduce"};
  return {kind, "SendRecv"};
}

class HtaWriter {
 public:
  HtaWriter(std::ostream& file, const TraceHead& head)
      : head_(head),
        writer_(file, {{"distributedInfo",
                        {{"backend", "nccl"},
                         {"rank", head.rank},
                         {"world_size", head.world_size},
                         {"synthetic", kLabel}}}}) {
    writer_.name_process(head.rank, "rank " + std::to_string(head.rank), head.rank);
  }

  void take(const Json& event) {
    if (event.value("ph", "") != "X") return;
    const double begin = event.at("ts").get<double>();
    const auto moved = [&](double us) { return whole(head_.clock.on_rank_0(us)); };
    const std::int64_t first = moved(begin);
    const Time time{first,
                    std::max<std::int64_t>(1, moved(begin + event.value("dur", 0.0)) - first)};
    const std::string name = event.value("name", "");
    const int track = event.value("tid", 0);
    const Json args = event.value("args", Json::object());
    if (track == 1) {
      add("user_annotation", "ProfilerStep#" + name.substr(name.find(' ') + 1), 0, time);
    } else if (track == 2) {
      add_kernel("backward", "backward", kBackwardStream, time, {});
    } else if (is_bucket(event)) {
      const auto [of_torch, of_nccl] = names_of(args.value("kind", name.substr(0, name.find(' '))));
      add_kernel("ncclKernel_" + of_nccl, "nccl:" + of_torch, kOperationStream, time,
                 {{"bytes", args.at("bytes")}, {"Collective name", of_torch}});
    } else if (track >= 10 && event.value("cat", "") != "communication") {
      add("cpu_op", name, track, time);
    }
  }

  void finish() { writer_.finish({{"events_lost", head_.events_lost}}); }
  int kernels() const { return correlation_; }

 private:
  /// Whole microseconds: HTA truncates fractions.
  struct Time {
    std::int64_t begin = 0;
    std::int64_t length = 0;
  };

  void add(const std::string& category, const std::string& name, int thread, const Time& time,
           Json args = Json::object()) {
    args["ronde"] = kLabel;
    writer_.add({{"ph", "X"},
                 {"cat", category},
                 {"name", name},
                 {"pid", head_.rank},
                 {"tid", thread},
                 {"ts", time.begin},
                 {"dur", time.length},
                 {"args", args}});
  }

  /// A kernel, and the launch on the CPU at the same time that stands for its beginning.
  void add_kernel(const std::string& name, const std::string& annotation, int stream,
                  const Time& time, Json args) {
    constexpr int kDriver = 1;  // the thread of launches
    ++correlation_;
    const Time launch{time.begin, 1};
    add("user_annotation", annotation, kDriver, launch);
    add("cuda_runtime", "cudaLaunchKernel", kDriver, launch,
        {{"correlation", correlation_}, {"External id", correlation_}, {"cbid", 211}});
    args.update({{"stream", stream},
                 {"correlation", correlation_},
                 {"External id", correlation_},
                 {"device", head_.rank}});
    add("kernel", name, stream, time, std::move(args));
  }

  const TraceHead& head_;
  TraceWriter writer_;
  int correlation_ = 0;
};

}  // namespace

void write_hta(const fs::path& folder, const fs::path& to, std::ostream& out) {
  std::error_code ignored;  // a folder that is not there is another one
  if (fs::equivalent(folder, to, ignored)) {
    throw UsageError(to.string() + " is the folder of the timeline itself: write to another one");
  }
  const std::vector<TraceHead> heads = read_heads(folder);
  for (const std::string& remark : trace_remarks(heads)) out << remark << '\n';
  fs::create_directories(to, ignored);  // the first file says why it cannot be made
  int kernels = 0;
  for (const TraceHead& head : heads) {
    write_file(to / ("rank" + std::to_string(head.rank) + ".json"), [&](std::ostream& file) {
      HtaWriter writer(file, head);
      read_trace(head.path, [&](Json& event) { writer.take(event); });
      writer.finish();
      kernels += writer.kernels();
    });
  }
  out << to.string() << ": " << count_text(heads.size(), "file") << " with "
      << count_text(kernels, "synthetic kernel") << " for Holistic Trace Analysis\n";
}

}  // namespace ronde::prof
