// SPDX-License-Identifier: Apache-2.0
#include "evaluation/report.h"

#include <filesystem>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

namespace edsr {
namespace {

constexpr int kNameWidth = 38;

/// The last parts of the path, cut from the left to the width of the column.
std::string short_name(const std::string& name) {
  const std::size_t width = kNameWidth - 2;
  if (name.size() <= width) return name;
  std::string shortened = "...";
  return shortened.append(name, name.size() - width + shortened.size());
}

void add_score(std::ostringstream& table, const std::string& name, double bicubic, double network) {
  table << "  " << std::left << std::setw(kNameWidth) << short_name(name) << std::right
        << std::fixed << std::setprecision(2) << std::setw(8) << bicubic << std::setw(8) << network
        << std::showpos << std::setw(8) << network - bicubic << std::noshowpos << "\n";
}

template <typename Value>
void add_line(std::ostringstream& table, const char* name, const Value& value) {
  table << "  " << std::left << std::setw(kNameWidth) << name << std::right << value << "\n";
}

std::string fixed(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

}  // namespace

std::string to_table(const Report& report) {
  std::ostringstream table;
  table << "  " << std::left << std::setw(kNameWidth) << "held-out photograph, PSNR in dB"
        << std::right << std::setw(8) << "bicubic" << std::setw(8) << "EDSR" << std::setw(8)
        << "gain"
        << "\n";
  for (const PhotographScore& score : report.evaluation.photographs) {
    add_score(table, score.name, score.bicubic, score.network);
  }
  add_score(table, "mean", report.evaluation.psnr_bicubic, report.evaluation.psnr_network);
  table << "\n";
  add_line(table, "ranks", report.ranks);
  add_line(table, "steps", report.steps);
  add_line(table, "loss, first and last step",
           fixed(report.loss_first, 5) + "  " + fixed(report.loss_last, 5));
  add_line(table, "images/s per rank", fixed(report.images_per_s_per_rank, 1));
  add_line(table, "images/s total", fixed(report.images_per_s_total, 1));
  add_line(table, "parameters identical on all ranks", report.parameters_identical ? "yes" : "NO");
  return table.str();
}

std::string to_json(const Report& report) {
  const nlohmann::ordered_json json{
      {"ranks", report.ranks},
      {"images_per_s_per_rank", report.images_per_s_per_rank},
      {"images_per_s_total", report.images_per_s_total},
      {"steps", report.steps},
      {"loss_first", report.loss_first},
      {"loss_last", report.loss_last},
      {"psnr_bicubic", report.evaluation.psnr_bicubic},
      {"psnr_network", report.evaluation.psnr_network},
      {"parameters_identical", report.parameters_identical},
  };
  return json.dump(2) + "\n";
}

}  // namespace edsr
