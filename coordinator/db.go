package coordinator

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	bolt "go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"ipufarm/protocol"
)

// The database holds what the coordinator knows, in four buckets:
//
//	meta    cursor, generation, stream: how far in which event stream, see below
//	jobs    <job>            Job without its tasks and its log
//	tasks   <job>/<key>      Task
//	log     <job>/<number>   protocol.Event, the number as 8 bytes, big-endian
//
// The cursor is the sequence of the last event that is contained in the jobs. It
// is written in the same transaction as the changes that the event caused, so an
// event is applied exactly once, whenever the coordinator dies.
type database struct{ bolt *bolt.DB }

var (
	bucketMeta  = []byte("meta")
	bucketJobs  = []byte("jobs")
	bucketTasks = []byte("tasks")
	bucketLog   = []byte("log")

	metaState = []byte("state")
)

// metaRecord ties the database to one event stream. When the messages are lost
// and the stream is made anew, its sequences start over: the generation rises,
// which makes every claim from before stale, and the cursor starts over too.
type metaRecord struct {
	Format     int       `json:"format"`
	Generation int       `json:"generation"`
	Stream     time.Time `json:"stream"` // when the event stream was made
	Cursor     uint64    `json:"cursor"`
}

const databaseFormat = 1

func openDatabase(path string) (*database, error) {
	db, err := bolt.Open(path, 0o600, &bolt.Options{Timeout: time.Second})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("database %s is in use by another coordinator", path)
	}
	if err != nil {
		return nil, fmt.Errorf("database %s: %w", path, err)
	}
	err = db.Update(func(tx *bolt.Tx) error {
		for _, name := range [][]byte{bucketMeta, bucketJobs, bucketTasks, bucketLog} {
			if _, err := tx.CreateBucketIfNotExists(name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		db.Close()
		return nil, fmt.Errorf("database %s: %w", path, err)
	}
	return &database{db}, nil
}

func (d *database) close() error { return d.bolt.Close() }

// meta reads the meta record; ok is false in a new database.
func (d *database) meta() (m metaRecord, ok bool, err error) {
	err = d.bolt.View(func(tx *bolt.Tx) error {
		data := tx.Bucket(bucketMeta).Get(metaState)
		if data == nil {
			return nil
		}
		ok = true
		if err := json.Unmarshal(data, &m); err != nil {
			return fmt.Errorf("database: meta: %w", err)
		}
		if m.Format != databaseFormat {
			return fmt.Errorf("database has format %d, this program reads %d", m.Format, databaseFormat)
		}
		return nil
	})
	return m, ok, err
}

// changed is a job with what has changed of it.
type changed struct {
	job     *Job
	effects Effects
}

// save writes the meta record and changed jobs in one transaction.
func (d *database) save(m metaRecord, changes []changed) error {
	m.Format = databaseFormat
	return d.bolt.Update(func(tx *bolt.Tx) error {
		if err := putJSON(tx, bucketMeta, metaState, m); err != nil {
			return err
		}
		for _, c := range changes {
			if err := saveJob(tx, c); err != nil {
				return fmt.Errorf("database: job %s: %w", c.job.Spec.ID, err)
			}
		}
		return nil
	})
}

func saveJob(tx *bolt.Tx, c changed) error {
	id := c.job.Spec.ID
	if err := putJSON(tx, bucketJobs, []byte(id), c.job); err != nil {
		return err
	}
	for _, key := range c.effects.Touched {
		if err := putJSON(tx, bucketTasks, []byte(id+"/"+key), c.job.Tasks[key]); err != nil {
			return err
		}
	}
	for i := range c.effects.Log {
		e := &c.effects.Log[i]
		if err := putJSON(tx, bucketLog, logKey(id, e.N), e); err != nil {
			return err
		}
	}
	return nil
}

func logKey(job string, n int) []byte {
	return binary.BigEndian.AppendUint64([]byte(job+"/"), uint64(n))
}

func putJSON(tx *bolt.Tx, bucket, key []byte, v any) error {
	data, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return tx.Bucket(bucket).Put(key, data)
}

// job reads one job; nil if there is none.
func (d *database) job(id string) (j *Job, err error) {
	err = d.bolt.View(func(tx *bolt.Tx) error {
		if data := tx.Bucket(bucketJobs).Get([]byte(id)); data != nil {
			j, err = loadJob(tx, data)
		}
		return err
	})
	return j, err
}

// unfinished reads the jobs that are active or have log entries to publish.
func (d *database) unfinished() (jobs []*Job, err error) {
	err = d.bolt.View(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketJobs).ForEach(func(_, data []byte) error {
			var head struct {
				State     protocol.JobState `json:"state"`
				LogLen    int               `json:"log_len"`
				Published int               `json:"published"`
			}
			if err := json.Unmarshal(data, &head); err != nil {
				return fmt.Errorf("database: %w", err)
			}
			if head.State.Over() && head.Published == head.LogLen {
				return nil
			}
			j, err := loadJob(tx, data)
			jobs = append(jobs, j)
			return err
		})
	})
	return jobs, err
}

func loadJob(tx *bolt.Tx, data []byte) (*Job, error) {
	j := &Job{Tasks: map[string]*Task{}}
	if err := json.Unmarshal(data, j); err != nil {
		return nil, fmt.Errorf("database: job: %w", err)
	}
	id := j.Spec.ID
	err := each(tx, bucketTasks, id, func(data []byte) error {
		t := new(Task)
		if err := json.Unmarshal(data, t); err != nil {
			return err
		}
		j.Tasks[t.Task.Key] = t
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("database: tasks of %s: %w", id, err)
	}
	err = each(tx, bucketLog, id, func(data []byte) error {
		var e protocol.Event
		if err := json.Unmarshal(data, &e); err != nil {
			return err
		}
		j.Log = append(j.Log, e)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("database: log of %s: %w", id, err)
	}
	return j, nil
}

// each calls f for the values under <job>/ in order of their keys.
func each(tx *bolt.Tx, bucket []byte, job string, f func([]byte) error) error {
	prefix := job + "/"
	c := tx.Bucket(bucket).Cursor()
	for k, v := c.Seek([]byte(prefix)); k != nil && len(k) >= len(prefix) && string(k[:len(prefix)]) == prefix; k, v = c.Next() {
		if err := f(v); err != nil {
			return err
		}
	}
	return nil
}
