// E2B's own SDKs for JavaScript: the life of a sandbox, code, files, commands, terminals.
import assert from 'node:assert'
import { readFileSync } from 'node:fs'
process.env.E2B_API_URL = process.env.E2B_SANDBOX_URL = `${process.env.GATEWAY}/e2b`
process.env.E2B_API_KEY = process.env.GATEWAY_KEY
const { Sandbox } = await import('@e2b/code-interpreter')
const s = await Sandbox.create({ timeoutMs: 120_000, metadata: { a: 'b' }, envs: { FOO: 'bar' } })
try {
  const out = []
  const ran = await s.runCode('print(1, flush=True)\n1 + 1', { onStdout: (m) => out.push(m.line) })
  assert.equal(ran.text, '2'); assert.deepEqual(out, ['1\n'])
  assert.equal((await s.runCode('1/0')).error.name, 'ZeroDivisionError')
  const c = await s.createCodeContext({ cwd: '/tmp' })
  assert.equal((await s.runCode('x = 1; x', { context: c })).text, '1')
  await s.removeCodeContext(c)
  assert.equal((await s.files.write('a/b.txt', 'hi')).path, '/home/user/a/b.txt')
  assert.equal(await s.files.read('a/b.txt'), 'hi')
  assert.equal((await s.files.list('a'))[0].name, 'b.txt')
  assert.equal(await s.files.exists('none'), false)
  assert.equal(await s.files.makeDir('d'), true)
  assert.equal(await s.files.makeDir('d'), false)
  const events = []
  const watched = await s.files.watchDir('a', (event) => events.push(`${event.type} ${event.name}`))
  await s.files.write('a/w', 'w')
  for (let i = 0; i < 100 && events.length < 2; i++) await new Promise((done) => setTimeout(done, 100))
  assert.deepEqual(events, ['create w', 'write w'])
  await watched.stop()
  await s.files.rename('a/b.txt', 'a/c.txt'); await s.files.remove('a/c.txt')
  assert.equal((await s.commands.run('echo $FOO', { user: 'root' })).stdout, 'bar\n')
  await assert.rejects(s.commands.run('exit 3'), (e) => e.exitCode === 3)
  const cat = await s.commands.run('cat', { background: true, stdin: true })
  await s.commands.sendStdin(cat.pid, 'typed\n'); await s.commands.closeStdin(cat.pid)
  assert.equal((await cat.wait()).stdout, 'typed\n')
  let seen = ''
  const pty = await s.pty.create({ rows: 30, cols: 90, onData: (d) => (seen += new TextDecoder().decode(d)) })
  await s.pty.sendInput(pty.pid, new TextEncoder().encode('stty size; exit\n'))
  await pty.wait(); assert.match(seen, /30 90/)
  await s.pause(); assert.equal(await s.isRunning(), false)
  await s.connect()
  assert.equal((await s.runCode('2')).text, '2')
  await assert.rejects(s.files.read('none'), (e) => e.name === 'FileNotFoundError' || e.name === 'NotFoundError')
} finally { await s.kill() }
const version = (name) => JSON.parse(readFileSync(`${import.meta.dirname}/node_modules/${name}/package.json`)).version
console.log(`e2b ${version('e2b')}, @e2b/code-interpreter ${version('@e2b/code-interpreter')}: work`)
