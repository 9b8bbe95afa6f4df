// Submitting a turn as RQ's clients do: a job that asks for it, its id in a queue, and the bell of an idle worker.

import { UsageError } from "../errors.js";
import { JOB_OPTIONS } from "../generated.js";

/** @import { JsonObject, TurnOptions } from "../types.js" */
/** @import { keysOf } from "./names.js" */

const RUN_TURN = "antiphon_worker.jobs.run_turn";
const BELL_MS = 60_000;

// A repetition, and a second submission of a key, find the job or the turn, and write nothing: 0.
const SUBMIT = `
if redis.call('EXISTS', KEYS[1], KEYS[2]) > 0 then return 0 end
redis.call('HSET', KEYS[1], 'data', ARGV[2], 'origin', ARGV[3], 'status', 'queued')
redis.call('SADD', KEYS[3], KEYS[4])
redis.call('RPUSH', KEYS[4], ARGV[1])
redis.call('RPUSH', KEYS[5], '1')
redis.call('LTRIM', KEYS[5], 0, 0)
redis.call('PEXPIRE', KEYS[5], ARGV[4])
return 1`;

/**
 * The field `data` of a job. Throws `UsageError` for an option that jobs do not have.
 *
 * @param {string} session
 * @param {string} text
 * @param {Omit<TurnOptions, "key">} [options]
 */
export function jobData(session, text, options = {}) {
  const given = Object.entries(options).filter(([name, value]) => value !== undefined && value !== JOB_OPTIONS[name]);
  const unknown = given.find(([name]) => !Object.hasOwn(JOB_OPTIONS, name));
  if (unknown) {
    const known = Object.keys(JOB_OPTIONS).join(", ");
    throw new UsageError(`A turn that is submitted in Redis has no option ${unknown[0]}: use ${known}.`, { code: "usage" });
  }
  return JSON.stringify([RUN_TURN, null, [session, text, Object.fromEntries(given)], {}]);
}

/**
 * The command that submits a turn. It may be repeated: a turn that is known already is left alone.
 *
 * @param {ReturnType<typeof keysOf>} keys
 * @param {string} turn
 * @param {string} queue
 * @param {string} data
 */
export function submitCommand(keys, turn, queue, data) {
  const names = [keys.job(turn), keys.turn(turn), keys.queues, keys.rq_queue(queue), keys.bell(queue)];
  return ["EVAL", SUBMIT, String(names.length), ...names, turn, data, queue, String(BELL_MS)];
}
