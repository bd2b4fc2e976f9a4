// SPDX-License-Identifier: Apache-2.0
#include "tools/grid/volume.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

#include "ronde/division.h"

namespace ronde::tool {
namespace {

/// A backend runs larger allreduces in calls of so many bytes a rank (docs/networks.md).
constexpr std::uint64_t kShare = std::uint64_t{512} << 10;

class Prediction {
 public:
  Prediction(const TrainingStep& step, const Division& division)
      : step_(step),
        sizes_(division),
        micro_batches_(sizes_[kStages] > 1 ? step.micro_batches : 1),
        volume_{.division = division, .stages = std::vector<Traffic>(sizes_[kStages])},
        forward_(sizes_[kStages]),
        backward_(sizes_[kStages]) {}

  Volume run() && {
    const EvenParts parts(step_.layers.size(), sizes_[kStages]);
    bool is_turned = true;
    double reduction = 0;
    for (std::size_t stage = 0; stage < sizes_[kStages]; ++stage) {
      std::uint64_t parameters = 0;
      for (std::size_t i = 0; i < parts.count(stage); ++i) {
        const Layer& layer = step_.layers[parts.offset(stage) + i];
        if (!layer.beside) is_turned = !is_turned;
        parameters += add(layer, stage, i == 0, is_turned);
      }
      const double seconds = allreduce(stage, kData, parameters, 1, volume_.stages[stage].data);
      reduction = std::max(reduction, seconds);
    }
    volume_.seconds = reduction;
    for (const std::vector<double>& way : {forward_, backward_}) {
      volume_.seconds += std::accumulate(way.begin(), way.end(), 0.0) +
                         static_cast<double>(micro_batches_ - 1) * *std::ranges::max_element(way);
    }
    return std::move(volume_);
  }

 private:
  /// Adds the communication of a layer. Returns how many of its parameters a rank holds.
  std::uint64_t add(const Layer& layer, std::size_t stage, bool is_first, bool is_turned) {
    const Axis in = is_turned ? kColumns : kRows;
    const Axis out = is_turned ? kRows : kColumns;
    const std::uint64_t inputs = EvenParts(layer.inputs, sizes_[in]).count(0);
    const std::uint64_t outputs = EvenParts(layer.outputs, sizes_[out]).count(0);
    const std::uint64_t samples = step_.batch / sizes_[kData] / micro_batches_;
    const std::uint64_t read = samples * layer.places_in * inputs;
    const std::uint64_t written = samples * layer.places_out * outputs;
    std::uint64_t& tensor = volume_.stages[stage].tensor;
    forward_[stage] += allreduce(stage, in, written, micro_batches_, tensor);
    const bool reads_data = is_first && stage == 0;
    if (!reads_data) backward_[stage] += allreduce(stage, out, read, micro_batches_, tensor);
    if (is_first && stage > 0) {
      const std::uint64_t bytes = read * sizeof(float);
      volume_.stages[stage - 1].pipeline += micro_batches_ * bytes;
      volume_.stages[stage].pipeline += micro_batches_ * bytes;
      const CostTerms message{1, static_cast<double>(bytes), 0};
      const double seconds = time_of(message, stage - 1, kStages, Algorithm::Ring);
      forward_[stage - 1] += seconds;
      backward_[stage] += seconds;
    }
    return (layer.kernel * inputs + layer.vectors) * outputs;
  }

  /// Returns the time of one allreduce in all groups of a stage along `axis`, and adds to `sent`
  /// the bytes that a rank sends in `times` of them.
  double allreduce(std::size_t stage, Axis axis, std::uint64_t elements, std::size_t times,
                   std::uint64_t& sent) {
    const std::size_t ranks = sizes_[axis];
    if (ranks == 1) return 0;
    const std::uint64_t bytes = elements * sizeof(float), most = kShare * ranks;
    double seconds = 0;
    using Calls = std::pair<std::uint64_t, std::uint64_t>;
    for (const auto& [size, count] : {Calls{most, bytes / most}, Calls{bytes % most, 1}}) {
      if (size == 0) continue;
      const Algorithm algorithm = AlgorithmTable().choose(Collective::Allreduce, ranks, size);
      const CostTerms terms = cost_terms(Collective::Allreduce, algorithm, ranks, size);
      sent += times * count * static_cast<std::uint64_t>(std::llround(terms.bytes));
      seconds += static_cast<double>(count) * time_of(terms, stage, axis, algorithm);
    }
    return seconds;
  }

  /// Returns the time of a call along `axis`; 0 within a host.
  double time_of(CostTerms terms, std::size_t stage, Axis axis, Algorithm algorithm) {
    const double share = link_share(stage, axis, algorithm);
    terms.bytes *= share;
    return share > 0 ? step_.costs.seconds(terms) : 0;
  }

  /// Returns what the busiest link carries in one direction while each rank of a stage sends a byte
  /// along `axis`: in a ring to the next place, else to those that the algorithm pairs it with.
  double link_share(std::size_t stage, Axis axis, Algorithm algorithm) {
    const auto [found, is_new] = shares_.try_emplace({stage, axis, algorithm});
    if (!is_new) return found->second;
    const std::size_t n = sizes_[axis];
    std::size_t stride = 1;
    for (std::size_t inner = axis + 1; inner < sizes_.size(); ++inner) stride *= sizes_[inner];
    const bool doubles = algorithm == Algorithm::RecursiveDoubling;
    const bool is_ring =
        !std::has_single_bit(n) || (!doubles && algorithm != Algorithm::HalvingDoubling);
    const int rounds = is_ring ? 1 : std::countr_zero(n);
    std::map<std::size_t, double> sent, received;  // by host
    const std::size_t ranks = step_.ranks / sizes_[kStages];
    for (std::size_t rank = stage * ranks; rank < (stage + 1) * ranks; ++rank) {
      const std::size_t place = rank / stride % n, host = rank / step_.ranks_per_host;
      for (int round = 0; round < rounds; ++round) {
        const std::size_t distance = std::size_t{1} << round;
        const std::size_t to = is_ring ? (place + 1) % n : place ^ distance;
        const std::size_t other = (rank - place * stride + to * stride) / step_.ranks_per_host;
        if (host == other) continue;
        const double part = is_ring || doubles
                                ? 1.0 / rounds
                                : static_cast<double>(distance) / static_cast<double>(n - 1);
        found->second = std::max({found->second, sent[host] += part, received[other] += part});
      }
    }
    return found->second;
  }

  const TrainingStep& step_;
  const Division sizes_;
  const std::size_t micro_batches_;
  Volume volume_;
  std::vector<double> forward_, backward_;  ///< seconds of a micro-batch in each stage
  std::map<std::tuple<std::size_t, Axis, Algorithm>, double> shares_;
};

}  // namespace

std::vector<Division> divisions_of(const TrainingStep& step) {
  std::vector<Division> divisions;
  for (std::size_t stages = 1; stages <= std::min(step.ranks, step.layers.size()); ++stages) {
    const std::size_t micro_batches = stages > 1 ? step.micro_batches : 1;
    for (std::size_t data = 1; data <= step.ranks / stages; ++data) {
      if (step.batch % (data * micro_batches) != 0) continue;
      for (std::size_t rows = 1; rows <= step.ranks / stages / data; ++rows) {
        if (step.ranks % (stages * data * rows) != 0) continue;
        divisions.push_back({stages, data, rows, step.ranks / (stages * data * rows)});
      }
    }
  }
  return divisions;
}

Volume volume_of(const TrainingStep& step, const Division& division) {
  return Prediction(step, division).run();
}

}  // namespace ronde::tool
