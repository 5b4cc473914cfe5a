#include "operator_log.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

namespace simulator {

namespace {

constexpr uint32_t header_bytes = 36864;
constexpr uint32_t unit_capacity = 4096;
constexpr uint64_t file_limit = 24u << 20;
// After so many new units, or bytes of them, only every second of those looked at so far is looked at.
constexpr uint64_t units_per_stride = 32;
constexpr uint64_t bytes_per_stride = 1u << 20;
// Longer sequences of calls are divided. Outside of training such a part counts as a unit.
constexpr size_t longest_segment = 65536;

enum Record : uint32_t { operator_record = 1, signature_record, call_record, segment_record, unit_record };

// The record of a call, of which all bytes are written.
struct StoredCall {
  uint32_t signature;
  uint16_t views;
  uint8_t step;
  uint8_t device;
  uint8_t is_other_thread;
  uint8_t zeros[3];
};
static_assert(sizeof(StoredCall) == 12);

uint64_t hash_of(const std::vector<uint32_t>& numbers, uint64_t seed) {
  uint64_t hash = mix_hash(seed, numbers.size());
  for (uint32_t number : numbers) hash = mix_hash(hash, number);
  return hash;
}

uint32_t find(const std::unordered_map<uint64_t, uint32_t>& numbers, uint64_t hash) {
  const auto found = numbers.find(hash);
  return found == numbers.end() ? OperatorLog::unknown : found->second;
}

}  // namespace

// The constants are those of splitmix64, whose results differ in half of their bits if the input differs in one.
uint64_t mix_hash(uint64_t hash, uint64_t value) {
  hash = (hash ^ value) + 0x9e3779b97f4a7c15ull;
  hash = (hash ^ (hash >> 30)) * 0xbf58476d1ce4e5b9ull;
  hash = (hash ^ (hash >> 27)) * 0x94d049bb133111ebull;
  return hash ^ (hash >> 31);
}

struct OperatorLog::Header {
  char magic[8];
  uint32_t version;
  uint32_t process;
  uint32_t header_bytes;
  uint32_t unit_capacity;
  uint64_t is_full;
  uint64_t reserved[4];
  struct {
    uint64_t units, sampled_units, calls, sampled_calls;
  } phases[8];
  uint8_t unused[4096 - 64 - 8 * 32];
  uint64_t weights[4096];
};

OperatorLog::OperatorLog(const std::string& path) {
  static_assert(sizeof(Header) == header_bytes && offsetof(Header, weights) == 4096 && offsetof(Header, phases) == 64);
  file_ = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file_ < 0) return;
  void* mapped = MAP_FAILED;
  if (ftruncate(file_, header_bytes) == 0) {
    mapped = mmap(nullptr, header_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  }
  if (mapped == MAP_FAILED || lseek(file_, header_bytes, SEEK_SET) < 0) {
    close(file_);
    file_ = -1;
    return;
  }
  header_ = static_cast<Header*>(mapped);
  file_bytes_ = header_bytes;
  header_->version = 1;
  header_->process = static_cast<uint32_t>(getpid());
  header_->header_bytes = header_bytes;
  header_->unit_capacity = unit_capacity;
  // A reader takes the file as valid once the magic bytes are there.
  std::memcpy(header_->magic, "SHOEOPER", sizeof header_->magic);
}

bool OperatorLog::is_sampling() const {
  return is_open() && records(phase_) && progress_[phase_].is_sampled && !header_->is_full;
}

void OperatorLog::count() {
  if (!is_open()) return;
  if (records(phase_)) {
    progress_[phase_].call_count++;
  } else {
    header_->phases[phase_].calls++;
  }
}

uint32_t OperatorLog::operator_number(const void* identity) const {
  const auto found = operators_.find(identity);
  return found == operators_.end() ? unknown : found->second;
}

uint32_t OperatorLog::add_operator(const void* identity, const std::string& json) {
  const auto number = static_cast<uint32_t>(operators_.size());
  operators_.emplace(identity, number);
  append(operator_record, json.data(), json.size());
  return number;
}

uint32_t OperatorLog::signature_number(uint64_t hash) const { return find(signatures_, hash); }

uint32_t OperatorLog::add_signature(uint64_t hash, const std::string& json) {
  const auto number = static_cast<uint32_t>(signatures_.size());
  signatures_.emplace(hash, number);
  append(signature_record, json.data(), json.size());
  return number;
}

void OperatorLog::add(const Call& call) {
  Progress& progress = progress_[phase_];
  const bool begins_microbatch = progress.last_step != forward_step && progress.last_step != optimizer_step &&
                                 (call.step == forward_step || call.step == optimizer_step);
  if (begins_microbatch) end_segment(progress);
  progress.last_step = call.step;
  progress.has_backward |= call.step == backward_step || call.step == recomputation_step;
  const StoredCall stored{call.signature, call.views, call.step, call.device, call.is_other_thread, {0, 0, 0}};
  uint64_t hash = 0;
  for (const uint64_t part : {uint64_t{call.signature}, uint64_t{call.views}, uint64_t{call.step}, uint64_t{call.device},
                              uint64_t{call.is_other_thread}}) {
    hash = mix_hash(hash, part);
  }
  uint32_t number = find(calls_, hash);
  if (number == unknown) {
    number = static_cast<uint32_t>(calls_.size());
    calls_.emplace(hash, number);
    append(call_record, &stored, sizeof stored);
  }
  progress.calls.push_back(number);
  progress.call_count++;
  if (progress.calls.size() < longest_segment) return;
  if (phase_ == training_phase) {
    end_segment(progress);
  } else {
    end_unit(phase_, update_);
  }
}

void OperatorLog::set_phase(int phase) {
  if (!is_open() || phase < 0 || phase > 7) return;
  // An update may be interrupted by an evaluation, and goes on afterwards.
  if (phase != phase_ && phase_ != training_phase && records(phase_)) end_unit(phase_, update_);
  phase_ = phase;
}

void OperatorLog::end_update(int64_t update) {
  if (!is_open() || update == update_) return;
  // The first update is announced when it has begun: what the script has called until then is a part of it.
  const bool is_announced = !has_begun_training_ && !progress_[training_phase].has_backward;
  if (!is_announced) end_unit(training_phase, update_);
  has_begun_training_ |= progress_[training_phase].call_count > 0 || !is_announced;
  update_ = update;
}

void OperatorLog::host_waited() {
  if (is_open() && phase_ != training_phase && records(phase_)) end_unit(phase_, update_);
}

void OperatorLog::close_units() {
  if (!is_open()) return;
  for (int phase : {evaluation_phase, generation_phase}) end_unit(phase, update_);
}

void OperatorLog::end_segment(Progress& progress) {
  if (progress.calls.empty()) return;
  const uint64_t hash = hash_of(progress.calls, segment_record);
  uint32_t number = find(segments_, hash);
  if (number == unknown) {
    number = static_cast<uint32_t>(segments_.size());
    segments_.emplace(hash, number);
    append(segment_record, progress.calls.data(), progress.calls.size() * sizeof(uint32_t));
  }
  progress.segments.push_back(number);
  progress.calls.clear();
}

void OperatorLog::end_unit(int phase, int64_t update) {
  Progress& progress = progress_[phase];
  if (progress.call_count == 0) return;
  auto& totals = header_->phases[phase];
  totals.units++;
  totals.calls += progress.call_count;
  if (progress.is_sampled && !header_->is_full) {
    end_segment(progress);
    const uint64_t hash = hash_of(progress.segments, mix_hash(unit_record, phase));
    uint32_t number = find(units_, hash);
    if (number == unknown) {
      number = static_cast<uint32_t>(units_.size());
      units_.emplace(hash, number);
      std::string record(16, '\0');
      const auto stored_phase = static_cast<uint32_t>(phase);
      std::memcpy(&record[0], &stored_phase, sizeof stored_phase);
      std::memcpy(&record[8], &update, sizeof update);
      record.append(reinterpret_cast<const char*>(progress.segments.data()), progress.segments.size() * sizeof(uint32_t));
      append(unit_record, record.data(), record.size());
      progress.new_units++;
      progress.new_bytes += pending_.size();
      flush();
    }
    header_->weights[number] += progress.stride;
    totals.sampled_units++;
    totals.sampled_calls += progress.call_count;
    if (units_.size() >= unit_capacity || file_bytes_ >= file_limit) header_->is_full = 1;
    if (progress.new_units >= units_per_stride || progress.new_bytes >= bytes_per_stride) {
      progress.stride *= 2;
      progress.new_units = progress.new_bytes = 0;
    }
  }
  progress.units++;
  progress.calls.clear();
  progress.segments.clear();
  progress.call_count = 0;
  progress.last_step = forward_step;
  progress.has_backward = false;
  progress.is_sampled = progress.units % progress.stride == 0;
}

void OperatorLog::append(uint32_t kind, const void* bytes, size_t size) {
  const uint32_t head[2] = {kind, static_cast<uint32_t>(size)};
  pending_.append(reinterpret_cast<const char*>(head), sizeof head);
  pending_.append(static_cast<const char*>(bytes), size);
}

void OperatorLog::flush() {
  size_t written = 0;
  while (written < pending_.size()) {
    const ssize_t count = write(file_, pending_.data() + written, pending_.size() - written);
    if (count <= 0) {
      // A full disk: what follows would refer to records that are missing.
      header_->is_full = 1;
      break;
    }
    written += static_cast<size_t>(count);
  }
  file_bytes_ += pending_.size();
  pending_.clear();
}

}  // namespace simulator
