// SPDX-License-Identifier: Apache-2.0
// A tool that listens to NVTX, as Nsight Systems does: NVTX_INJECTION64_PATH names this library,
// which notes each call of domain "ronde" on a line.
#include <nvtx3/nvToolsExt.h>

#include <algorithm>
#include <mutex>
#include <string>

namespace {

std::mutex mutex;
std::string lines;
nvtxRangeId_t ranges = 0;
char ronde_domain, other_domain;

nvtxDomainHandle_t NVTX_API create_domain(const char* name) {
  char& domain = std::string(name) == "ronde" ? ronde_domain : other_domain;
  return reinterpret_cast<nvtxDomainHandle_t>(&domain);
}

bool is_ronde(nvtxDomainHandle_t domain) {
  return domain == reinterpret_cast<nvtxDomainHandle_t>(&ronde_domain);
}

std::string one_line(const char* text) {
  std::string line(text);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line + "\n";
}

nvtxRangeId_t NVTX_API start(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* range) {
  const std::lock_guard lock(mutex);
  ++ranges;
  if (is_ronde(domain)) {
    lines += "start " + std::to_string(ranges) + " " + one_line(range->message.ascii);
  }
  return ranges;
}

void NVTX_API end(nvtxDomainHandle_t domain, nvtxRangeId_t range) {
  const std::lock_guard lock(mutex);
  if (is_ronde(domain)) lines += "end " + std::to_string(range) + "\n";
}

void NVTX_API mark(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* mark) {
  const std::lock_guard lock(mutex);
  if (is_ronde(domain)) lines += "mark " + one_line(mark->message.ascii);
}

}  // namespace

extern "C" {

/// What was called so far.
__attribute__((visibility("default"))) const char* nvtx_listener_lines() {
  static std::string copy;
  const std::lock_guard lock(mutex);
  copy = lines;
  return copy.c_str();
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(
    NvtxGetExportTableFunc_t get_table) {
  const auto* const callbacks =
      static_cast<const NvtxExportTableCallbacks*>(get_table(NVTX_ETID_CALLBACKS));
  NvtxFunctionTable table = nullptr;
  unsigned size = 0;
  if (callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) == 0) return 0;
  *table[NVTX_CBID_CORE2_DomainCreateA] = reinterpret_cast<NvtxFunctionPointer>(&create_domain);
  *table[NVTX_CBID_CORE2_DomainRangeStartEx] = reinterpret_cast<NvtxFunctionPointer>(&start);
  *table[NVTX_CBID_CORE2_DomainRangeEnd] = reinterpret_cast<NvtxFunctionPointer>(&end);
  *table[NVTX_CBID_CORE2_DomainMarkEx] = reinterpret_cast<NvtxFunctionPointer>(&mark);
  return 1;
}
}
