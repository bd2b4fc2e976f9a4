// SPDX-License-Identifier: Apache-2.0
#include "training/checkpoint.h"

#include <ronde/ronde.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include <torch/serialize.h>

#include "common/data/files.h"
#include "common/errors.h"

namespace edsr {
namespace {

constexpr const char* kFormat = "ronde-edsr-checkpoint";
constexpr std::int64_t kVersion = 1;

[[noreturn]] void refuse(const std::filesystem::path& path, const std::string& reason) {
  throw example::InputError("checkpoint " + path.string() + " " + reason);
}

std::string first_line(const char* text) {
  std::string line;
  std::getline(std::istringstream(text), line);
  return line;
}

template <typename T>
void compare(const char* name, const T& saved, const T& wanted, std::ostringstream& differences) {
  if (saved == wanted) return;
  differences << (differences.tellp() > 0 ? "; " : "") << name << " " << saved << " there, "
              << wanted << " here";
}

void check_same_run(const std::filesystem::path& path, const RunConfig& saved,
                    const RunConfig& wanted) {
  std::ostringstream differences;
  compare("network:", describe(saved.network), describe(wanted.network), differences);
  compare("batch", saved.batch, wanted.batch, differences);
  compare("patch", saved.patch, wanted.patch, differences);
  compare("seed", saved.seed, wanted.seed, differences);
  compare("samples per epoch", saved.samples, wanted.samples, differences);
  if (differences.tellp() > 0) {
    refuse(path, "was written by a different run (" + differences.str() +
                     "); give the same options and photographs, or start anew without --resume");
  }
}

c10::IValue read_value(torch::serialize::InputArchive& archive, const std::string& key) {
  c10::IValue value;
  archive.read(key, value);
  return value;
}

void check_format(const std::filesystem::path& path, torch::serialize::InputArchive& archive) {
  c10::IValue format;
  if (!archive.try_read("format", format) || !format.isString() ||
      format.toStringRef() != kFormat) {
    refuse(path,
           "is a LibTorch archive, but no checkpoint of this program; move it away, or "
           "choose another --output");
  }
  const std::int64_t version = read_value(archive, "version").toInt();
  if (version != kVersion) {
    refuse(path, "has format version " + std::to_string(version) + ", this program reads " +
                     std::to_string(kVersion));
  }
}

Position read_position(torch::serialize::InputArchive& archive) {
  Position position;
  position.step = read_value(archive, "step").toInt();
  position.epoch = read_value(archive, "epoch").toInt();
  position.step_in_epoch = read_value(archive, "step_in_epoch").toInt();
  position.seconds = read_value(archive, "seconds").toDouble();
  position.loss_first = read_value(archive, "loss_first").toDouble();
  return position;
}

}  // namespace

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

void save_checkpoint(const std::filesystem::path& path, const Edsr& network,
                     const torch::optim::Adam& optimizer, const Position& position,
                     const RunConfig& config) {
  ronde::Span span("write checkpoint");
  torch::serialize::OutputArchive archive;
  archive.write("format", c10::IValue(std::string(kFormat)));
  archive.write("version", c10::IValue(kVersion));
  archive.write("config", c10::IValue(config.to_json()));
  archive.write("step", c10::IValue(position.step));
  archive.write("epoch", c10::IValue(position.epoch));
  archive.write("step_in_epoch", c10::IValue(position.step_in_epoch));
  archive.write("seconds", c10::IValue(position.seconds));
  archive.write("loss_first", c10::IValue(position.loss_first));
  torch::serialize::OutputArchive network_archive;
  network->save(network_archive);
  archive.write("network", network_archive);
  torch::serialize::OutputArchive optimizer_archive;
  optimizer.save(optimizer_archive);
  archive.write("optimizer", optimizer_archive);

  // By way of memory: LibTorch's archive writer must not meet an error half way, for it would write
  // again from its destructor.
  std::ostringstream bytes;
  archive.save_to(bytes);
  span.add_bytes(static_cast<std::uint64_t>(bytes.tellp()));
  example::write_text(path, bytes.str());
}

Position load_checkpoint(const std::filesystem::path& path, Edsr& network,
                         torch::optim::Adam& optimizer, const RunConfig& config) {
  if (!std::filesystem::exists(path)) refuse(path, "does not exist; run without --resume first");
  try {
    torch::serialize::InputArchive archive;
    archive.load_from(path.string(), network->parameters().front().device());
    check_format(path, archive);
    check_same_run(path, RunConfig::from_json(read_value(archive, "config").toStringRef()), config);
    torch::serialize::InputArchive network_archive;
    archive.read("network", network_archive);
    network->load(network_archive);
    torch::serialize::InputArchive optimizer_archive;
    archive.read("optimizer", optimizer_archive);
    optimizer.load(optimizer_archive);
    return read_position(archive);
  } catch (const c10::Error& error) {
    refuse(path, "is truncated, corrupt or no LibTorch archive: " +
                     first_line(error.what_without_backtrace()));
  } catch (const nlohmann::json::exception& error) {
    refuse(path, std::string("holds a corrupt configuration: ") + error.what());
  }
}

}  // namespace edsr
