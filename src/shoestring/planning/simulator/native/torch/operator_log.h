// The file FOLDER/operators.<pid>: what ran, in numbers that refer to each other, so that a long run takes little space.
//
// A *call* is an operator with the shapes of its operands (a *signature*), in a step of an update. A *segment* is a sequence
// of calls, such as forward and backward of a microbatch. A *unit* is a sequence of segments: an update in training; elsewhere
// what the host queues until it waits for the device. Equal signatures, calls, segments and units are stored once.
//
// Little-endian:
//   header  36,864 bytes, mapped into memory: what is counted there survives a kill
//     0     8 bytes   "SHOEOPER"
//     8     u32       version of the format, 1
//     12    u32       process
//     16    u32       bytes of the header
//     20    u32       units that the header has weights for
//     24    u64       1 if the file has reached its limit, and later units are only counted; else 0
//     64    8 times   for each phase (simulator_set_phase): u64 units, u64 sampled units, u64 calls, u64 calls in sampled units
//     4096  4096 u64  the weight of each stored unit, by its number: how many units it stands for
//   records, appended, each u32 kind, u32 bytes, and so many bytes. A record's number counts those of its kind, from 0.
//     1 operator   JSON: {"name", "arguments": [names], "written": [indices of arguments], "aliases": [indices of results]}
//     2 signature  JSON: [number of the operator, [arguments], [results]], in which a tensor on a GPU is [type, sizes] or
//                  [type, sizes, strides], one on the host [type, sizes, null, "cpu"], a list of tensors
//                  {"list": [[tensor, repetitions], ...], "tensors": left out, "bytes": of those}; integers are {"ints": []},
//                  booleans {"bools": []}; anything else, and what does not matter for the time, is null
//     3 call       u32 signature, u16 views before it, u8 step (0 forward, 1 backward, 2 optimizer, 3 recomputation of forward
//                  in backward), u8 device, u8 1 if another thread than the first called it, 3 bytes of zeros
//     4 segment    u32 calls, ...
//     5 unit       u32 phase, u32 zero, i64 update, u32 segments, ...
// The records of a unit are written once it is complete. A last record that is incomplete is to be ignored.
//
// All units are stored as long as few of them differ. With more, such as those of texts of varying lengths, every second
// is looked at, then every fourth, and so on, each with the weight of those that it stands for: an even sample.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace simulator {

enum Step : uint8_t { forward_step, backward_step, optimizer_step, recomputation_step };
enum Phase : int { loading_phase, training_phase, evaluation_phase, generation_phase, saving_phase, other_phase };

struct Call {
  uint32_t signature;
  uint16_t views;
  uint8_t step;
  uint8_t device;
  bool is_other_thread;
};

// Not safe for threads: operators.cpp has the lock.
class OperatorLog {
 public:
  // Creates the file. `is_open` tells whether that worked; without it all functions do nothing.
  explicit OperatorLog(const std::string& path);

  bool is_open() const { return header_ != nullptr; }

  // Whether calls have to be described now, or only counted.
  bool is_sampling() const;
  // Counts a call that is not described.
  void count();

  uint32_t operator_number(const void* identity) const;  // `unknown` if it has none yet
  uint32_t add_operator(const void* identity, const std::string& json);
  uint32_t signature_number(uint64_t hash) const;  // `unknown` likewise
  uint32_t add_signature(uint64_t hash, const std::string& json);
  void add(const Call& call);

  void set_phase(int phase);
  void end_update(int64_t update);
  void host_waited();
  void close_units();  // at the end of the process: what it has done in phases other than training

  static constexpr uint32_t unknown = 0xffffffff;

 private:
  struct Header;

  // The unit under way in a phase, and how many are looked at.
  struct Progress {
    std::vector<uint32_t> calls;     // of the segment under way
    std::vector<uint32_t> segments;  // of the unit under way
    uint64_t call_count = 0;         // of the unit under way
    uint8_t last_step = forward_step;
    bool has_backward = false;  // in a unit that is sampled
    uint64_t units = 0;
    uint64_t stride = 1;
    uint64_t new_units = 0;  // stored since the stride was chosen
    uint64_t new_bytes = 0;
    bool is_sampled = true;
  };

  bool records(int phase) const { return phase >= training_phase && phase <= generation_phase; }
  void end_segment(Progress& progress);
  void end_unit(int phase, int64_t update);
  void append(uint32_t kind, const void* bytes, size_t size);
  void flush();

  Header* header_ = nullptr;
  int file_ = -1;
  int phase_ = loading_phase;
  int64_t update_ = 0;
  bool has_begun_training_ = false;
  uint64_t file_bytes_ = 0;
  std::string pending_;  // records that are not yet in the file
  Progress progress_[8];
  std::unordered_map<const void*, uint32_t> operators_;
  std::unordered_map<uint64_t, uint32_t> signatures_, calls_, segments_, units_;
};

// Returns the hash of a sequence, given the hash of all but its last number; that of none is 0.
uint64_t mix_hash(uint64_t hash, uint64_t value);

}  // namespace simulator
