// SPDX-License-Identifier: Apache-2.0
#include "training/checkpoint.h"

#include <csignal>
#include <nlohmann/json.hpp>
#include <sstream>

#include "common/errors.h"

namespace edsr {
namespace {

template <typename T>
void compare(const char* name, const T& saved, const T& wanted, std::ostringstream& differences) {
  if (saved == wanted) return;
  differences << (differences.tellp() > 0 ? "; " : "") << name << " " << saved << " there, "
              << wanted << " here";
}

}  // namespace

std::string differences(const RunConfig& saved, const RunConfig& wanted) {
  std::ostringstream all;
  compare("network:", describe(saved.network), describe(wanted.network), all);
  compare("batch", saved.batch, wanted.batch, all);
  compare("patch", saved.patch, wanted.patch, all);
  compare("seed", saved.seed, wanted.seed, all);
  compare("samples per epoch", saved.samples, wanted.samples, all);
  return all.str();
}

std::string RunConfig::to_json() const {
  return nlohmann::json{{"blocks", network.blocks}, {"features", network.features},
                        {"scale", network.scale},   {"residual_scale", network.residual_scale},
                        {"batch", batch},           {"patch", patch},
                        {"samples", samples},       {"seed", seed}}
      .dump();
}

RunConfig RunConfig::from_json(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  RunConfig config;
  config.network = {json.at("blocks"), json.at("features"), json.at("scale"),
                    json.at("residual_scale")};
  config.batch = json.at("batch");
  config.patch = json.at("patch");
  config.samples = json.at("samples");
  config.seed = json.at("seed");
  return config;
}

// A run that does not resume replaces the checkpoints of former ones.
RunCheckpoint::RunCheckpoint(const std::filesystem::path& folder, Edsr& network,
                             torch::optim::Adam& adam, const RunConfig& config)
    : folder_(folder),
      wanted_(config),
      config_(config.to_json()),
      checkpoint_(folder, {.overwrite = true, .stop_signals = {SIGTERM}}) {
  checkpoint_.add("network", network).add("adam", adam).add("config", config_);
  checkpoint_.add("epoch", position_.epoch).add("step in epoch", position_.step_in_epoch);
  checkpoint_.add("seconds", position_.seconds).add("first loss", position_.loss_first);
  checkpoint_.add("last loss", position_.loss_last);
}

Position RunCheckpoint::resume() {
  const std::optional<std::int64_t> step = checkpoint_.resume();
  if (!step) return {};
  const std::string problem = differences(RunConfig::from_json(config_), wanted_);
  if (!problem.empty()) {
    throw example::InputError("checkpoint in " + folder_.string() +
                              " was written by a different run (" + problem +
                              "); give the same options and photographs, or start anew without "
                              "--resume");
  }
  position_.step = *step;
  return position_;
}

void RunCheckpoint::save(const Position& position) {
  position_ = position;
  checkpoint_.save(position.step);
}

}  // namespace edsr
