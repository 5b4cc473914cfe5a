#include "limits.h"

#include "configuration.h"

namespace simulator {
namespace {

constexpr int KiB = 1 << 10;
constexpr int MiB = 1 << 20;

// To be compared with the CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability", and, for caches,
// buses and clocks, with NVIDIA's data sheets: they were written from memory, for P100, P40, V100, T4, A100, A10, Orin, L4, H100, B200 and RTX PRO 6000.
constexpr Limits table[] = {
    {60, 2048, 32, 64 * KiB, 48 * KiB, 0, 4 * MiB, 4096, 1328500, 715000},
    {61, 2048, 32, 96 * KiB, 48 * KiB, 0, 3 * MiB, 384, 1531000, 3615000},
    {70, 2048, 32, 96 * KiB, 96 * KiB, 0, 6 * MiB, 4096, 1530000, 877000},
    {75, 1024, 16, 64 * KiB, 64 * KiB, 0, 4 * MiB, 256, 1590000, 5001000},
    {80, 2048, 32, 164 * KiB, 163 * KiB, KiB, 40 * MiB, 5120, 1410000, 1593000},
    {86, 1536, 16, 100 * KiB, 99 * KiB, KiB, 6 * MiB, 384, 1695000, 6251000},
    {87, 1536, 16, 164 * KiB, 163 * KiB, KiB, 4 * MiB, 256, 1300000, 3200000},
    {89, 1536, 24, 100 * KiB, 99 * KiB, KiB, 48 * MiB, 192, 2040000, 6251000},
    {90, 2048, 32, 228 * KiB, 227 * KiB, KiB, 50 * MiB, 5120, 1980000, 2619000},
    {100, 2048, 32, 228 * KiB, 227 * KiB, KiB, 126 * MiB, 8192, 1965000, 3996000},
    {120, 1536, 24, 100 * KiB, 99 * KiB, KiB, 128 * MiB, 512, 2430000, 14001000},
};

// The row of the capability, otherwise of the nearest lower one.
const Limits& find(int capability) {
  const Limits* best = &table[0];
  for (const Limits& row : table)
    if (row.capability <= capability) best = &row;
  return *best;
}

}  // namespace

const Limits& limits() {
  static const Limits& found = find(configuration().capability());
  return found;
}

}  // namespace simulator
