// ComputeSDK's provider for E2B, as its own benchmark uses it: the time from a sandbox's creation to its first command.
import assert from 'node:assert'
import { readFileSync } from 'node:fs'
process.env.E2B_API_URL = process.env.E2B_SANDBOX_URL = `${process.env.GATEWAY}/e2b`
process.env.E2B_API_KEY = process.env.GATEWAY_KEY
process.env.E2B_VALIDATE_API_KEY = 'false'
const { e2b } = await import('@computesdk/e2b')
const compute = e2b({ apiKey: process.env.GATEWAY_KEY })

async function timeToFirstCommand() {
  const began = performance.now()
  const sandbox = await compute.sandbox.create()
  try {
    const ran = await sandbox.runCommand('echo ready')
    assert.deepEqual([ran.exitCode, ran.stdout], [0, 'ready\n'])
    return performance.now() - began
  } finally { await sandbox.destroy() }
}

const shown = (times) => `median ${Math.round(times.sort((a, b) => a - b)[times.length >> 1])} ms, longest ${Math.round(times.at(-1))} ms`
const inTurn = []
for (let i = 0; i < 10; i++) inTurn.push(await timeToFirstCommand())
const atOnce = await Promise.all(Array.from({ length: 10 }, timeToFirstCommand))
const version = (name) => JSON.parse(readFileSync(`${import.meta.dirname}/node_modules/${name}/package.json`)).version
console.log(`@computesdk/e2b ${version('@computesdk/e2b')}: works. Time to the first command: in turn ${shown(inTurn)}; 10 at once ${shown(atOnce)}`)
